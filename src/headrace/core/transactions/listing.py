"""ListTransactions: which transactions match the filters of a request."""

from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.transactions.transaction import STATE_NAMES, Transaction
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

_STATE_BY_NAME = {name: state for state, name in STATE_NAMES.items()}


class Filter:
    """The filters of one request. Raises Rejected for an invalid pattern."""

    def __init__(self, request: m.ListTransactionsRequest) -> None:
        self.unknown_states = [name for name in request.state_filters if name not in _STATE_BY_NAME]
        # A filter with unknown states only matches nothing; no filter matches everything.
        self._states = (
            {_STATE_BY_NAME[name] for name in request.state_filters if name in _STATE_BY_NAME}
            if request.state_filters
            else None
        )
        self._producer_ids = frozenset(request.producer_id_filters)
        self._duration_ms_min: int = request.duration_filter
        self._matches_id = _matcher(request.transactional_id_pattern)

    def matches(self, transaction: Transaction, now: Millis) -> bool:
        """Whether the transaction passes all filters."""
        if self._states is not None and transaction.state not in self._states:
            return False
        if self._producer_ids and transaction.producer_id not in self._producer_ids:
            return False
        # As in Kafka: the duration counts from the start of the last transaction, even if it has
        # ended. An id that never had a transaction matches every duration.
        if 0 <= self._duration_ms_min >= now - transaction.started_at:
            return False
        return self._matches_id is None or bool(self._matches_id(transaction.transactional_id))

    def of(self, transactions: Iterable[Transaction], now: Millis) -> list[Transaction]:
        return [transaction for transaction in transactions if self.matches(transaction, now)]


def _matcher(pattern: str | None) -> Callable[[str], Any] | None:
    if not pattern:
        return None
    import re2  # linear in its input: a pattern cannot block the broker

    options = re2.Options()
    options.log_errors = False
    try:
        matcher: Callable[[str], Any] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise Rejected(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Invalid transactional id pattern {pattern!r}: {error}",
        ) from error
    return matcher
