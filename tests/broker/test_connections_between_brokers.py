"""Connections between brokers: opened when used, and again at the broker's current address."""

import pytest

from headrace.broker.peers import Peers
from headrace.client.errors import Disconnected
from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.world.network import dial
from tests.fakes.standin import in_loop


def entry(address):
    host, _, port = address.rpartition(":")
    return BrokerEntry(BrokerId(1), {"PLAINTEXT": Endpoint(host, int(port))}, None, 7)


async def cluster_of(peer):
    answer = await peer.request(m.MetadataRequest(topics=[]), m.MetadataResponse, api_version=12)
    return answer.cluster_id


@in_loop
async def test_a_lost_connection_is_opened_again_at_the_new_address():
    with Broker() as first, Broker() as second:
        addresses = {BrokerId(1): entry(first.bootstrap_servers)}
        peer = Peers(addresses.get, "PLAINTEXT", dial).peer(BrokerId(1), "test")
        before = await cluster_of(peer)
        addresses[BrokerId(1)] = entry(second.bootstrap_servers)
        first.stop()
        with pytest.raises(Disconnected):
            while True:  # until the closed connection is noticed
                assert await cluster_of(peer) == before
        assert await cluster_of(peer) != before
        await peer.close()
