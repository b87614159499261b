"""Which transactions a ListTransactions asks for."""

from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.transactions.transaction import STATE_NAMES, Transaction
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

_STATE_BY_NAME = {name: state for state, name in STATE_NAMES.items()}


class Filter:
    """One request's requests; a transaction must meet all of them. Rejected for a bad pattern."""

    def __init__(self, request: m.ListTransactionsRequest) -> None:
        self.unknown_states = [name for name in request.state_filters if name not in _STATE_BY_NAME]
        # A filter that names only unknown states lets nothing through; none at all lets all.
        self._states = (
            {_STATE_BY_NAME[name] for name in request.state_filters if name in _STATE_BY_NAME}
            if request.state_filters
            else None
        )
        self._producer_ids = frozenset(request.producer_id_filters)
        self._duration_ms_min: int = request.duration_filter
        self._matches = _matcher(request.transactional_id_pattern)

    def wants(self, transaction: Transaction, now: Millis) -> bool:
        if self._states is not None and transaction.state not in self._states:
            return False
        if self._producer_ids and transaction.producer_id not in self._producer_ids:
            return False
        # As in Kafka: from the start of the last transaction, also of one that has ended; an id
        # that never had one is as old as can be.
        if 0 <= self._duration_ms_min >= now - transaction.started_at:
            return False
        return self._matches is None or bool(self._matches(transaction.transactional_id))

    def of(self, transactions: Iterable[Transaction], now: Millis) -> list[Transaction]:
        return [transaction for transaction in transactions if self.wants(transaction, now)]


def _matcher(pattern: str | None) -> Callable[[str], Any] | None:
    if not pattern:
        return None
    import re2  # linear in its input, so a client cannot hang the broker with a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        matcher: Callable[[str], Any] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise Rejected(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"the pattern {pattern!r}: {error}"
        ) from error
    return matcher
