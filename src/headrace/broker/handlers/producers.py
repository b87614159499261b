"""InitProducerId: an id of its own for every idempotent producer."""

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.app import Broker


async def init_producer_id(
    broker: "Broker", context: Context, request: m.InitProducerIdRequest
) -> m.InitProducerIdResponse:
    if request.transactional_id is not None:
        if not request.transactional_id:
            raise Rejected(ErrorCode.INVALID_REQUEST, "an empty transactional.id")
        raise Rejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker coordinates no transactions yet"
        )
    return m.InitProducerIdResponse(
        producer_id=await broker.control.next_producer_id(), producer_epoch=0
    )
