-- The scripts run inside Redis, each after the parts of the prelude that its Uses line names.
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 100
ignore = { "211/now", "211/stamp", "211/replay", "211/remember", "211/count", "211/owns", "211/append", "211/failed", "211/nudge", "211/ring", "211/paused", "211/missing_of", "211/littered", "211/wait_most",
           "211/anchor", "211/ran", "211/scheduled", "211/flagged", "211/state_of", "211/going", "211/hex", "211/runs_most", "211/forget", "211/withdraw",
           "211/release", "211/retain", "211/operator", "211/rows", "211/receipt_ms", "211/measure", "211/sized", "211/terms", "211/namesakes", "211/replaced", "241/replaced", "211/unready", "211/unready_most", "211/wrong",
           "211/lane_of", "211/lane_range", "211/of_record", "211/has_key", "211/place_of", "211/offer", "211/key_of", "211/place_rest",
           "211/unhold", "211/held_by", "211/flow_of", "211/rule_of", "211/order_of", "211/foremost", "211/is_foremost", "211/block", "211/unblock", "211/blocking" }
