"""Connections between brokers that cannot be opened."""

import pytest

from headrace.broker.peers import Peers
from headrace.client.errors import Disconnected
from headrace.model.ids import BrokerId
from headrace.wire import messages as m
from headrace.world.network import dial
from tests.fakes.standin import in_loop


async def cluster_of(peer):
    answer = await peer.request(m.MetadataRequest(topics=[]), m.MetadataResponse, api_version=12)
    return answer.cluster_id


@in_loop
async def test_a_broker_without_an_address_and_a_closed_peer_are_named():
    peers = Peers({}.get, "INTERNAL", dial)
    peer = peers.peer(BrokerId(3), "test")
    with pytest.raises(Disconnected, match="broker 3 has no known address for listener INTERNAL"):
        await cluster_of(peer)
    await peer.close()
    with pytest.raises(Disconnected, match="the connection to broker 3 is closed"):
        await cluster_of(peer)
