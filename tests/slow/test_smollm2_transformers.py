"""SmolLM2-135M by transformers: generate over PagedCache gives the tokens of DynamicCache, and beams share blocks."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from pagedcache.interop.transformers import PagedCache  # noqa: E402

pytestmark = pytest.mark.slow
VERSION = tuple(int(number) for number in transformers.__version__.split(".")[:2])
CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gguf")
    from pagedcache.serving.models import find_model

    try:
        path = find_model()
    except OSError as reason:
        pytest.skip(str(reason))
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True).eval()


@pytest.mark.parametrize("level", ["gather", "kernel"])
@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_of_a_real_model(model, beams, level):
    torch.manual_seed(0)
    ids = torch.randint(100, 40000, (1, 256))
    options = {"max_new_tokens": 32, "min_new_tokens": 32, "num_beams": beams, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    model.set_attn_implementation("sdpa")
    expected = model.generate(ids, **options)
    if level == "kernel":
        model.set_attn_implementation("pagedcache")
    cache = PagedCache(model.config, num_blocks=80, threads=1)
    assert torch.equal(model.generate(ids, **options, **{CACHE: cache}), expected)
    one = -(-(256 + 31) // cache.kv.spec.block_size)
    assert cache.kv.stats().peak_used <= (1.25 * one if beams > 1 else one)
    cache.reset()
    cache.kv.check()
    assert cache.kv.stats().used == 0
