"""The activity events of a website: which topics there are, and the columns of their JSON values.

Every event has an ID, by which doubled events are found, and the time at which it happened.
"""

from typing import Final

_EVENT = "event_id string, at timestamp"
_VISIT = f"{_EVENT}, visitor string, member long"

# ``member`` is null for visitors who are not signed in.
SCHEMAS: Final = {
    "page-views": f"{_VISIT}, client string, page string, item long, author long, profile long, "
    "referrer string, agent string",
    "searches": f"{_VISIT}, page string, query string, results int",
    "impressions": f"{_VISIT}, item long, category string, position int",
    "clicks": f"{_VISIT}, item long, category string, position int",
    "follows": f"{_EVENT}, member long, followed long, action string",  # follow, unfollow
    "posts": f"{_EVENT}, member long, client string, post long, category string, text string",
    "votes": f"{_EVENT}, member long, item long, category string, value int",  # 1 or -1
    "ratings": f"{_EVENT}, member long, item long, category string, stars int",  # 1 to 5
    "comments": f"{_EVENT}, member long, post long, comment long, text string",
    "logins": f"{_EVENT}, client string, account string, succeeded boolean",
    "api-calls": f"{_EVENT}, client string, endpoint string, status int, bytes long",
    "metrics": f"{_EVENT}, host string, service string, cpu double, io_read long, io_write long",
    "requests": f"{_EVENT}, host string, service string, method string, path string, status int, "
    "duration_ms double",
}
EVENT_ID: Final = "event_id"
EVENT_TIME: Final = "at"
RAW: Final = "raw"  # the directory of the raw tables in a warehouse, one for each topic
