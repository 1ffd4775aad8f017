// pagedcache.hpp: errors are thrown with their status and words, and a step that is left by one is abandoned.
#include <cassert>
#include <cstring>
#include <vector>

#include <pagedcache.hpp>

template <typename Call> static int status_of(Call call, const char *words) {
    try {
        call();
    } catch (const paged::error &fault) {
        assert(std::strstr(fault.what(), words));
        return fault.status;
    }
    return PAGEDCACHE_OK;
}

static void attention_alone() {
    std::vector<float> k(2 * 16 * 8, 1.0f), q(8, 1.0f), out(8);
    pagedcache_layer layer{};
    layer.k = layer.v = k.data(), layer.num_blocks = 1, layer.block_size = 16, layer.kv_heads = 1, layer.head_dim = 8;
    const int32_t table = 1, length = 3, indptr[] = {0, 1};
    pagedcache_step step{};
    step.num_sequences = step.num_tokens = step.table_width = 1;
    step.block_tables = &table, step.kv_lens = &length, step.qo_indptr = indptr;
    const paged::plan plan = paged::make_plan(layer, step, 1);
    paged::require(paged::api().attend(&layer, plan.get(), q.data(), 0, out.data(), 0, nullptr, nullptr));
    assert(out == std::vector<float>(8, 1.0f));
    assert(status_of([&] { paged::make_plan(layer, step, 0); }, "q_heads is 0") == PAGEDCACHE_INVALID);
}

int main() {
    pagedcache_config config{};
    assert(status_of([&] { paged::cache{config}; }, "num_blocks is 0") == PAGEDCACHE_INVALID);
    config.num_blocks = 4;
    paged::cache cache(config);
    const int64_t one = cache.start(), other = cache.start();

    assert(status_of([&] { paged::step(cache, {one}, {}); }, "one count per") == PAGEDCACHE_INVALID);
    const auto too_much = [&] { paged::step(cache, {one, other}, {60, 60}); };
    assert(status_of(too_much, "8 blocks wanted, 4 of 4 are free") == PAGEDCACHE_OUT_OF_BLOCKS);
    assert(status_of(
               [&] {
                   paged::step step(cache, {one}, {20});
                   assert(step.arrays().num_tokens == 20 && cache.stats().used_blocks == 2);
                   step.attend(0, pagedcache_tensors{}); // bookkeeping alone has no layers
               },
               "layer 0") == PAGEDCACHE_INVALID);
    assert(cache.stats().used_blocks == 0);
    paged::step(cache, {one}, {20}).commit();
    cache.truncate(one, 3);
    assert(cache.stats().used_blocks == 1);
    cache.release(one);
    assert(status_of([&] { cache.release(one); }, "was released") == PAGEDCACHE_STALE);
    attention_alone();
}
