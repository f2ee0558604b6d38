-- SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
-- For wrk: asks for the files named after "--" in turn; prints one line
-- "WRK requests errors rate p50 p99" (rate per second, latencies in ms).

local turn, paths = 0, {}

function init(args)
   paths = args
end

function request()
   turn = turn % #paths + 1
   return wrk.format("GET", paths[turn])
end

function done(summary, latency)
   local e = summary.errors
   io.write(string.format("WRK %d %d %.1f %.2f %.2f\n", summary.requests,
      e.connect + e.read + e.write + e.status + e.timeout,
      summary.requests / (summary.duration / 1e6),
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
