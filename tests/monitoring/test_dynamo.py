"""A router that people run reads the events: Dynamo's, which listens, keeps a radix tree, and says who has a prompt.

Needs ai-dynamo-runtime, a large package that the extras do not bring: ``pip install ai-dynamo-runtime==1.6.1``.
"""

import asyncio
import os

import pytest

os.environ.setdefault("DYN_LOG", "error")
SelectionService = getattr(pytest.importorskip("dynamo._core"), "SelectionService", None)
pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from kv_follower import Workload  # noqa: E402

from pagedcache.monitoring import KVEventExporter, ZmqPublisher  # noqa: E402

SECONDS = 20  # after which a router that has not followed fails the test


class Router:
    """Dynamo's service with one worker, ours."""

    def __init__(self, service, publisher):
        self.service = service
        self.worker = {
            "worker_id": 1,
            "model_name": "m",
            "endpoint": "http://127.0.0.1:1",  # where requests would go; none do
            "block_size": 4,
            "kv_events_endpoints": {0: publisher.endpoint},
            "replay_endpoint": publisher.replay,
        }

    async def blocks(self, prompt):
        """Blocks of the prompt that the worker has, as the router knows."""
        scores = await self.service.overlap_scores({"model_name": "m", "token_ids": prompt})
        return scores["workers"][0]["device_blocks"]

    async def follows(self, work, prompts):
        """Wait until the router finds what the cache holds of every prompt."""
        held = (work.cache.match([[*prompt, 0] for prompt in prompts]) // 4).tolist()
        for _ in range(100 * SECONDS):
            told = [await self.blocks(prompt) for prompt in prompts]
            if told == held:
                return held
            await asyncio.sleep(0.01)
        pytest.fail(f"the router says {told}, the cache {held}")


@pytest.mark.parametrize("form", ["map", "array"])
def test_dynamos_router_finds_what_the_cache_finds(form):
    async def run():
        work = Workload(0)
        prompts = [prompt for prompt in work.prompts if len(prompt) >= 4]
        with ZmqPublisher("tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*") as publisher:
            exporter = KVEventExporter(work.cache, publisher, form=form)
            router = Router(SelectionService(indexer_threads=1), publisher)
            await router.service.upsert_worker(router.worker)
            handle = work.store([9] * 9)
            for _ in range(100 * SECONDS):  # until its subscription is known
                exporter.export(anew=True)
                if await router.blocks([9] * 8) == 2:
                    break
                await asyncio.sleep(0.01)
            work.cache.release([handle])
            seen = set()
            for turn in range(30):
                for _ in range(10):
                    work.act()
                exporter.export()
                seen.update(await router.follows(work, prompts))
                if turn == 20:
                    work.cache.reset()
            assert max(seen) >= 4, "long prefixes were found"
            await router.service.shutdown_async()

    if SelectionService is None:
        pytest.skip("this ai-dynamo-runtime has no SelectionService")
    asyncio.run(run())
