"""Leadership returns to preferred replicas automatically."""

from tests.fakes.standin import in_loop
from tests.fakes.told_brokers import (
    make_topic,
    proposal,
    told_cluster,
    until,
)


@in_loop
async def test_leaders_return_to_preferred_replicas_automatically():
    settings = {
        "leader.imbalance.check.interval.seconds": "1",
        "leader.imbalance.per.broker.percentage": "10",
    }
    async with told_cluster(settings=settings) as cluster:
        controller = await cluster.start(2)
        await make_topic(controller)
        cluster.crash(1)
        await until(lambda: cluster.brokers[3].leader_of("t") == 2)
        await cluster.register(1)
        await until(lambda: 1 in controller.metadata.brokers)
        epoch = cluster.entries[2].broker_epoch
        await controller.alter_isr(2, epoch, [proposal(controller, "t", (2, 3, 1))])
        await until(lambda: cluster.brokers[3].leader_of("t") == 1)
