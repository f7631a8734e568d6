-- The one place where a job changes. ARGV[1] names the operation. Each operation checks the table of allowed
-- transitions, fences by attempt, and appends the update in the same step. The clock is the broker's own.
local ALLOWED = {
  QUEUED = {DISPATCHED = true, ERROR = true},
  DISPATCHED = {RUNNING = true, QUEUED = true, ERROR = true},
  RUNNING = {COMPLETED = true, QUEUED = true, ERROR = true},
}
local TERMINAL = {COMPLETED = true, ERROR = true}
local LEASES = 'ndif:leases'
-- A result up to so many bytes is told together with its COMPLETED to the session that waits for it.
local MAX_TOLD_BODY = 65536

local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function job_key(id) return 'ndif:job:' .. id end
local function waiting_key(queue) return 'ndif:waiting:' .. queue end

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
  local v = redis.call('HMGET', job_key(id), 'status', 'attempt', 'stream', 'ttl', 'queue', 'sequence', 'cancel')
  if not v[1] then return nil end
  return {status = v[1], attempt = v[2], stream = v[3], ttl = v[4], queue = v[5], sequence = v[6], cancel = v[7]}
end

local function finish(id, job, status, description, meta, result, body)
  redis.call('HSET', job_key(id), 'finished_at', tostring(clock()))
  redis.call('HDEL', job_key(id), 'payload', 'put_urls')
  redis.call('ZREM', LEASES, id)
  redis.call('ZREM', waiting_key(job.queue), id)
  if result then redis.call('HSET', job_key(id), 'result', result) end
  set_status(id, job, status, description, meta, result, body)
  redis.call('EXPIRE', job_key(id), job.ttl)
end

local function back_in_line(id, job, description)
  redis.call('ZREM', LEASES, id)
  redis.call('ZADD', waiting_key(job.queue), job.sequence, id)
  set_status(id, job, 'QUEUED', description, 'null')
end

local op = ARGV[1]
local id = ARGV[2]

if op == 'submit' then
  -- id, queue, stream, ttl, then field/value pairs -> the place in line, or nil when nobody listens to the stream
  local queue, stream, ttl = ARGV[3], ARGV[4], ARGV[5]
  if redis.call('EXISTS', 'ndif:closed:' .. stream) == 1 then return nil end
  if redis.call('EXISTS', job_key(id)) == 1 then return redis.call('ZCARD', waiting_key(queue)) end
  local sequence = redis.call('INCR', 'ndif:sequence')
  redis.call('HSET', job_key(id), 'queue', queue, 'stream', stream, 'ttl', ttl, 'attempt', '0',
    'sequence', sequence, 'submitted_at', tostring(clock()))
  for i = 6, #ARGV, 2 do redis.call('HSET', job_key(id), ARGV[i], ARGV[i + 1]) end
  redis.call('ZADD', waiting_key(queue), sequence, id)
  redis.call('SADD', 'ndif:queues', queue)
  local position = redis.call('ZRANK', waiting_key(queue), id) + 1
  set_status(id, {stream = stream, ttl = ttl}, 'QUEUED', 'Position ' .. position .. ' in the queue.', 'null')
  return position

elseif op == 'claim' then
  -- queue, replica, lease seconds -> id, the job's fields and how many wait behind it, or nil
  local queue, replica, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
  while true do
    local head = redis.call('ZPOPMIN', waiting_key(queue))
    if #head == 0 then return nil end
    local job = read(head[1])
    if job and job.status == 'QUEUED' then
      local now = clock()
      redis.call('HINCRBY', job_key(head[1]), 'attempt', 1)
      redis.call('HSET', job_key(head[1]), 'replica', replica, 'claimed_at', tostring(now))
      redis.call('ZADD', LEASES, now + lease, head[1])
      set_status(head[1], job, 'DISPATCHED', 'Taken by a replica.', 'null')
      return {head[1], redis.call('HGETALL', job_key(head[1])), redis.call('ZCARD', waiting_key(queue))}
    end
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
