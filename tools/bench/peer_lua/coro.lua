-- SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
-- coro.lua - the rows of coroutines, for Lua and LuaJIT

local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local wrap = coroutine.wrap

local function pairs_(n)
	local co = create(function(v) while true do v = yield(v) end end)
	for i = 1, n do resume(co, i) end
end

-- wrap: what a generator in a for loop uses
local function wrapped(n)
	local f = wrap(function(v) while true do v = yield(v) end end)
	for i = 1, n do f(i) end
end

local function creates(n)
	for i = 1, n do resume(create(function() end)) end
end

local function timed(run, n)
	local t = os.clock()
	run(n)
	return os.clock() - t
end

-- as row_loop in bench.c
local function row_loop(run)
	local n = 64
	while timed(run, n) < 0.04 do n = n * 2 end
	n = math.floor(n * 0.4 / timed(run, n)) + 1
	return timed(run, n) / n * 1e9
end

if arg[1] == "coro" then
	print(string.format("coro %.3f",
		math.min(row_loop(pairs_), row_loop(wrapped))))
elseif arg[1] == "coro-create" then
	print(string.format("coro-create %.3f", row_loop(creates)))
else
	os.exit(77)
end
