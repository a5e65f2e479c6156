"""The console's page, scripts and styles, as they lie in the package, and who made those that come from elsewhere."""
