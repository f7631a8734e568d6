-- The one place where a job changes. ARGV[1] names the operation. Each operation checks the table of allowed
-- transitions, fences by attempt, and appends the update in the same step. The clock is the broker's own.
local ALLOWED = {
  QUEUED = {DISPATCHED = true, ERROR = true},
  DISPATCHED = {RUNNING = true, QUEUED = true, ERROR = true},
  RUNNING = {COMPLETED = true, QUEUED = true, ERROR = true},
}
local TERMINAL = {COMPLETED = true, ERROR = true}
local LEASES = 'ndif:leases'
-- Those that are over and not yet in the database.
local FINISHED = 'ndif:finished'
-- Of tiers, the lower one goes first; a turn is far smaller than what lies between two.
local TIER = 2 ^ 40
-- The turn of a job that is in line again: before anybody's.
local AHEAD = -2
-- How much the newest run weighs in the mean of a queue's run times.
local NEWEST = 0.2
-- A result up to so many bytes is told together with its COMPLETED to the session that waits for it.
local MAX_TOLD_BODY = 65536

local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function job_key(id) return 'ndif:job:' .. id end
local function waiting_key(queue) return 'ndif:waiting:' .. queue end
local function running_key(queue) return 'ndif:running:' .. queue end
local function turns_key(queue) return 'ndif:turns:' .. queue end
local function pace_key(queue) return 'ndif:pace:' .. queue end
local function line_key(job) return 'ndif:line:' .. job.queue .. ':' .. job.tier .. ':' .. job.owner end
-- Those whose turn is the same go by age, as their names in line are ordered.
local function place_of(id, sequence) return string.format('%015d', sequence) .. ':' .. id end
local function id_at(place) return string.sub(place, 17) end

local function append(id, stream, ttl, status, description, meta, data, body)
  local text = '{"id":' .. cjson.encode(id) .. ',"status":"' .. status .. '","description":'
    .. cjson.encode(description) .. ',"data":' .. (data and cjson.encode(data) or 'null') .. ',"meta":' .. meta .. '}'
  local key = 'ndif:updates:' .. stream
  -- Never trimmed: what goes first would be a COMPLETED that a slow reader has not come to. A job's lines are limited.
  if body and stream ~= id and #body <= MAX_TOLD_BODY then
    redis.call('XADD', key, '*', 'u', text, 'body', body)
  else
    redis.call('XADD', key, '*', 'u', text)
  end
  redis.call('EXPIRE', key, ttl)
end

local function set_status(id, job, status, description, meta, data, body)
  redis.call('HSET', job_key(id), 'status', status, 'description', description, 'meta', meta)
  append(id, job.stream, job.ttl, status, description, meta, data, body)
end

local function read(id)
  local v = redis.call('HMGET', job_key(id), 'status', 'attempt', 'stream', 'ttl', 'queue', 'sequence', 'cancel',
    'owner', 'tier', 'turn', 'claimed_at')
  if not v[1] then return nil end
  return {status = v[1], attempt = v[2], stream = v[3], ttl = v[4], queue = v[5], sequence = v[6], cancel = v[7],
    owner = v[8], tier = v[9], turn = v[10], claimed_at = v[11], place = place_of(id, v[6])}
end

local function turn_now(job)
  return tonumber(redis.call('HGET', turns_key(job.queue), 'now:' .. job.tier) or 0)
end

-- Owners take turns: of each who has jobs waiting one is of the next turn, one of the turn after it, and so on. How many
-- jobs somebody has delays nobody else's. Who had none served since the line was last empty is before the others, once.
local function next_turn(job)
  local last = redis.call('ZRANGE', line_key(job), -1, -1, 'WITHSCORES')[2]
  local now = turn_now(job)
  if not last and redis.call('HEXISTS', turns_key(job.queue), 'served:' .. job.tier .. ':' .. job.owner) == 0 then
    return now - 1
  end
  return math.max(tonumber(last or 0), now) + 1
end

local function note_turn(job)
  redis.call('HSET', turns_key(job.queue), 'now:' .. job.tier, math.max(turn_now(job), tonumber(job.turn)),
    'served:' .. job.tier .. ':' .. job.owner, 1)
end

local function stand(id, job)
  redis.call('HSET', job_key(id), 'turn', job.turn)
  redis.call('ZADD', line_key(job), job.turn, id)
  redis.call('ZADD', waiting_key(job.queue), job.tier * TIER + job.turn, job.place)
end

local function leave_line(id, job)
  redis.call('ZREM', line_key(job), id)
  redis.call('ZREM', waiting_key(job.queue), job.place)
  if redis.call('EXISTS', waiting_key(job.queue)) == 0 then
    redis.call('DEL', turns_key(job.queue))
  end
end

-- Out of the line without having run: the others of the same owner move up by one turn each.
local function give_turn_up(id, job)
  local turn = job.turn
  leave_line(id, job)
  local behind = redis.call('ZRANGEBYSCORE', line_key(job), turn, '+inf', 'WITHSCORES')
  for i = 1, #behind, 2 do
    local other = read(behind[i])
    other.turn = turn
    turn = behind[i + 1]
    stand(behind[i], other)
  end
end

local function note_pace(job)
  local took = clock() - tonumber(job.claimed_at)
  local mean = tonumber(redis.call('GET', pace_key(job.queue)) or took)
  redis.call('SET', pace_key(job.queue), tostring(mean + NEWEST * (took - mean)), 'EX', job.ttl)
end

local function finish(id, job, status, description, meta, result, body)
  redis.call('HSET', job_key(id), 'finished_at', tostring(clock()))
  redis.call('HDEL', job_key(id), 'payload', 'put_urls')
  redis.call('ZREM', LEASES, id)
  if job.status == 'QUEUED' then give_turn_up(id, job) end
  if redis.call('SREM', running_key(job.queue), id) == 1 then note_pace(job) end
  if result then redis.call('HSET', job_key(id), 'result', result) end
  set_status(id, job, status, description, meta, result, body)
  redis.call('EXPIRE', job_key(id), job.ttl)
  redis.call('RPUSH', FINISHED, id)
end

local function back_in_line(id, job, description)
  redis.call('ZREM', LEASES, id)
  redis.call('SREM', running_key(job.queue), id)
  job.turn = AHEAD
  stand(id, job)
  set_status(id, job, 'QUEUED', description, 'null')
end

local op = ARGV[1]
local id = ARGV[2]

if op == 'submit' then
  -- id, queue, stream, ttl, tier, owner, then field/value pairs -> the place in line, or nil when nobody listens to
  -- the stream
  local queue, stream, ttl, tier, owner = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
  if redis.call('EXISTS', 'ndif:closed:' .. stream) == 1 then return nil end
  if redis.call('EXISTS', job_key(id)) == 1 then return redis.call('ZCARD', waiting_key(queue)) end
  local sequence = redis.call('INCR', 'ndif:sequence')
  redis.call('HSET', job_key(id), 'queue', queue, 'stream', stream, 'ttl', ttl, 'attempt', '0',
    'sequence', sequence, 'submitted_at', tostring(clock()), 'tier', tier, 'owner', owner)
  for i = 8, #ARGV, 2 do redis.call('HSET', job_key(id), ARGV[i], ARGV[i + 1]) end
  local job = {queue = queue, stream = stream, ttl = ttl, tier = tier, owner = owner, place = place_of(id, sequence)}
  redis.call('SADD', 'ndif:queues', queue)
  job.turn = next_turn(job)
  stand(id, job)
  local position = redis.call('ZRANK', waiting_key(queue), job.place) + 1
  set_status(id, job, 'QUEUED', 'Position ' .. position .. ' in the queue.', 'null')
  return position

elseif op == 'claim' then
  -- queue, replica, lease seconds -> id, the job's fields and how many wait behind it, or nil
  local queue, replica, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
  while true do
    local head = redis.call('ZRANGE', waiting_key(queue), 0, 0)[1]
    if not head then return nil end
    id = id_at(head)
    local job = read(id)
    if job and job.status == 'QUEUED' then
      local now = clock()
      note_turn(job)
      leave_line(id, job)
      redis.call('HINCRBY', job_key(id), 'attempt', 1)
      redis.call('HSET', job_key(id), 'replica', replica, 'claimed_at', tostring(now))
      redis.call('ZADD', LEASES, now + lease, id)
      redis.call('SADD', running_key(queue), id)
      set_status(id, job, 'DISPATCHED', 'Taken by a replica.', 'null')
      return {id, redis.call('HGETALL', job_key(id)), redis.call('ZCARD', waiting_key(queue))}
    end
    redis.call('ZREM', waiting_key(queue), head)  -- it was deleted by hand
  end

elseif op == 'move' then
  -- id, attempt ('' for any), status, description, meta, then nothing, or 'key' and the object that is the result, or
  -- 'body' and a small result itself, kept beside the job -> 1 done, 0 refused. Where the result lies is the update's
  -- data, for whoever tells it to the client.
  local job = read(id)
  local attempt, status, description, meta = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  if not job or (attempt ~= '' and attempt ~= job.attempt) then return 0 end
  if job.status == status and attempt ~= '' then return 1 end
  if not (ALLOWED[job.status] and ALLOWED[job.status][status]) then return 0 end
  local result, body = ARGV[8], nil
  if ARGV[7] == 'body' then
    result, body = 'ndif:result:' .. id .. ':' .. job.attempt, ARGV[8]
    redis.call('SET', result, body, 'EX', job.ttl)
  end
  if TERMINAL[status] then
    finish(id, job, status, description, meta, result, body)
  else
    if status == 'RUNNING' then redis.call('HSET', job_key(id), 'started_at', tostring(clock())) end
    set_status(id, job, status, description, meta)
  end
  return 1

elseif op == 'log' then
  -- id, attempt, lines... -> 1 appended, 0 refused
  local job = read(id)
  if not job or job.attempt ~= ARGV[3] or job.status ~= 'RUNNING' then return 0 end
  for i = 4, #ARGV do append(id, job.stream, job.ttl, 'LOG', ARGV[i], 'null') end
  redis.call('HINCRBY', job_key(id), 'log_lines', #ARGV - 3)
  return 1

elseif op == 'renew' then
  -- id, attempt, lease seconds -> 'held', 'cancel' or 'lost'
  local job = read(id)
  if not job or job.attempt ~= ARGV[3] or not redis.call('ZSCORE', LEASES, id) then return 'lost' end
  if job.cancel then return 'cancel' end
  redis.call('ZADD', LEASES, clock() + tonumber(ARGV[4]), id)
  return 'held'

elseif op == 'cancel' then
  -- id, description -> 1 ended or asked to end, 0 already over
  local job = read(id)
  if not job or TERMINAL[job.status] then return 0 end
  if job.status == 'QUEUED' then
    finish(id, job, 'ERROR', ARGV[3], 'null')
  else
    redis.call('HSET', job_key(id), 'cancel', '1')
  end
  return 1

elseif op == 'hand_back' then
  -- id, attempt, max attempts, description when over -> the queue it is in line again at, or nil
  local job = read(id)
  if not job or job.attempt ~= ARGV[3] or not ALLOWED[job.status] or job.status == 'QUEUED' then return nil end
  if job.cancel or tonumber(job.attempt) >= tonumber(ARGV[4]) then
    finish(id, job, 'ERROR', job.cancel and 'The job was cancelled.' or ARGV[5], 'null')
    return nil
  end
  back_in_line(id, job, 'The replica running it stopped; the job is in line again.')
  return job.queue

elseif op == 'expired' then
  -- -> ids and attempts whose lease ran out, flat
  local found = {}
  for _, lost in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', clock(), 'LIMIT', 0, 100)) do
    local job = read(lost)
    if job then
      found[#found + 1] = lost
      found[#found + 1] = job.attempt
    else
      redis.call('ZREM', LEASES, lost)
    end
  end
  return found
end

return redis.error_reply('unknown operation ' .. tostring(op))
