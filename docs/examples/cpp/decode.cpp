// docs/examples/c/decode.c in C++17, where objects close and errors are thrown.
//
//     c++ -std=c++17 decode.cpp $(python -m pagedcache.capi --cflags --libs) -o decode && ./decode
#include <cstdio>
#include <exception>
#include <vector>

#include <pagedcache.hpp>

constexpr int layers = 2, kv_heads = 2, q_heads = 4, head_dim = 16;
enum kind { q_numbers, k_numbers, v_numbers };

static std::vector<float> numbers(kind kind, int layer, const std::vector<int> &tokens, int width) {
    std::vector<float> rows;
    for (int token : tokens)
        for (int i = 0; i < width; i++)
            rows.push_back(static_cast<float>((kind * 31 + layer * 17 + token * 13 + i * 7) % 64 - 32) / 32);
    return rows;
}

static void run_step(paged::cache &cache, const std::vector<int64_t> &sequences, const std::vector<int32_t> &counts,
                     const std::vector<int> &tokens) {
    constexpr int width = q_heads * head_dim;
    std::vector<float> out(tokens.size() * width);
    paged::step step(cache, sequences, counts); // abandoned where something throws
    for (int layer = 0; layer < layers; layer++) {
        const auto q = numbers(q_numbers, layer, tokens, width);
        const auto k = numbers(k_numbers, layer, tokens, kv_heads * head_dim);
        const auto v = numbers(v_numbers, layer, tokens, kv_heads * head_dim);
        pagedcache_tensors tensors{};
        tensors.q = q.data(), tensors.k = k.data(), tensors.v = v.data(), tensors.out = out.data();
        tensors.q_heads = q_heads;
        step.attend(layer, tensors);
    }
    step.commit();
    for (size_t t = 0; t < tokens.size(); t++)
        std::printf("%d %.9g %.9g\n", tokens[t], out[t * width], out[(t + 1) * width - 1]);
}

static void decode() {
    pagedcache_config config{};
    config.num_layers = layers, config.num_blocks = 100, config.block_size = 4;
    config.kv_heads = kv_heads, config.head_dim = head_dim, config.dtype = PAGEDCACHE_FLOAT16;
    paged::cache cache(config);

    const auto parent = cache.start();
    run_step(cache, {parent}, {6}, {1, 2, 3, 4, 5, 6});
    for (int token = 7; token <= 9; token++) run_step(cache, {parent}, {1}, {token});
    const auto child = cache.fork(parent);
    run_step(cache, {parent, child}, {1, 1}, {10, 20});
    std::printf("blocks %d, shared %d\n", cache.stats().used_blocks, cache.stats().shared_blocks);
    cache.release(parent);
    cache.release(child);
}

int main() {
    try {
        decode();
    } catch (const std::exception &fault) {
        std::fprintf(stderr, "%s\n", fault.what());
        return 1;
    }
}
