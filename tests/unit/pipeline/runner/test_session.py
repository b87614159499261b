"""The pools of a session: short triggers have the larger share."""

from xml.etree import ElementTree

from headrace.pipeline.runner.session import pool_of, pools_xml


def test_every_trigger_has_a_pool_and_shorter_ones_weigh_more():
    pools = {
        pool.get("name"): int(pool.findtext("weight", "0"))
        for pool in ElementTree.fromstring(pools_xml())
    }
    names = [pool_of(trigger_ms) for trigger_ms in (500, 5_000, 10_000, 30_000)]
    weights = [pools[name] for name in names]
    assert weights == sorted(weights, reverse=True) and len(set(weights)) == 4
    assert pool_of(1_000) == names[0] and pool_of(3_600_000) == names[3]
