-- Publishes of one named producer per wrk thread and connection slot, in application/vnd.oncelog+avro, with rising sequence ids.
-- arguments: messages per request, payload bytes, "named" or "unnamed"
local count, size, named
local counter = 0
local thread_id = 0

local function varint(n)
  local out = {}
  n = n * 2 -- zigzag of a number that is not negative
  while n >= 128 do
    out[#out + 1] = string.char(n % 128 + 128)
    n = math.floor(n / 128)
  end
  out[#out + 1] = string.char(n)
  return table.concat(out)
end

local threads = 0
function setup(thread)
  thread:set("thread_id", threads)
  threads = threads + 1
end

function init(args)
  count, size, named = tonumber(args[1]), tonumber(args[2]), args[3] == "named"
  local payload = varint(size) .. string.rep("a", size)
  messages = varint(count) .. string.rep(payload, count) .. "\0"
  nothing = "\0\0\0\0\0\0" -- keys, properties, ttls and three expectations: all null
  headers = {["content-type"] = "application/vnd.oncelog+avro"}
  slots = 16 * tonumber(args[4] or "1")
end

function request()
  -- transactionWritePointer null, producer, epoch null, sequenceIds, the rest, messages
  if not named then
    return wrk.format("POST", nil, headers, "\0\0\0\0" .. nothing .. messages)
  end
  -- wrk does not say over which connection a request will go, so two of one producer could overtake each other. With 16 times
  -- as many producers as connections in turn, the one before has long been answered.
  local slot = counter % slots
  local first = math.floor(counter / slots) * count
  counter = counter + 1
  local name = string.format("wrk-%d-%d", thread_id, slot)
  -- branch 2 of sequenceIds: the first of ids that rise by one, as the SDK sends them
  return wrk.format("POST", nil, headers, "\0\2" .. varint(#name) .. name .. "\0\4" .. varint(first) .. nothing .. messages)
end
