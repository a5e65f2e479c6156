// Which page of a search comes first: Sphinx's own weights, and behind what users read the pages on how and why it is made.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score]) =>
    /^(docs\/decisions\/|ARCHITECTURE|CHANGELOG|docs\/formats|docs\/releasing)/.test(page) ? score / 10 : score,
};
