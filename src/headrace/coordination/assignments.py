"""The replicas of every topic, as any broker can read them from the coordination tree."""

from headrace.coordination import paths, values
from headrace.coordination.tree import Tree


async def load_assignments(tree: Tree) -> dict[str, values.Assignment]:
    """The topics that exist now; a topic that another broker just deleted is absent."""
    await tree.sync()
    names = await tree.children(paths.BROKER_TOPICS) or []
    nodes = await tree.get_many([paths.topic(name) for name in names])
    return {
        name: values.decode_topic(name, node.value)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    }
