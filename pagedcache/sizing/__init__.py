"""What memory a model and a workload take: plans, scenarios, block sizes. Measured on real caches, before serving."""

from pagedcache.sizing.block_sizes import BLOCK_SIZES, Advice, BlockSizeCost, advise, cost_of_block_sizes
from pagedcache.sizing.decode_speed import DecodeSpeeds, decode_speeds
from pagedcache.sizing.model_shape import ModelShape, read_shape
from pagedcache.sizing.plan import MemoryPlan, Room, plan_memory
from pagedcache.sizing.scenarios import SCENARIOS, Holding, Scenario, measure, measure_beams

__all__ = [
    "BLOCK_SIZES",
    "SCENARIOS",
    "Advice",
    "BlockSizeCost",
    "DecodeSpeeds",
    "Holding",
    "MemoryPlan",
    "ModelShape",
    "Room",
    "Scenario",
    "advise",
    "cost_of_block_sizes",
    "decode_speeds",
    "measure",
    "measure_beams",
    "plan_memory",
    "read_shape",
]
