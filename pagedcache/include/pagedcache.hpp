/* pagedcache for C++17: owners and exceptions over pagedcache.h, which says what everything does. Header only.
 *
 *     pagedcache_config config{};
 *     ...
 *     paged::cache cache(config);
 *     auto sequence = cache.start();
 *     {
 *         paged::step step(cache, {sequence}, {8});      abandoned, unless commit() is reached
 *         for (int layer = 0; layer < 30; layer++) step.attend(layer, tensors);
 *         step.commit();
 *     } */
#ifndef PAGEDCACHE_HPP
#define PAGEDCACHE_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pagedcache.h"

namespace paged {

/* What a call returned, and why. */
class error : public std::runtime_error {
  public:
    error(int status, const std::string &why) : std::runtime_error(why), status(status) {}
    const int status;
};

inline const pagedcache_api &api() {
    static const pagedcache_api *const table = pagedcache_get_api(PAGEDCACHE_API_VERSION);
    if (!table) throw error(PAGEDCACHE_UNSUPPORTED, "libpagedcache is older than this program: upgrade pagedcache");
    return *table;
}

inline void require(int status) {
    if (status != PAGEDCACHE_OK) throw error(status, api().error());
}

struct closer {
    void operator()(pagedcache *cache) const { api().close(cache); }
    void operator()(pagedcache_plan *plan) const { api().plan_free(plan); }
};
using plan = std::unique_ptr<pagedcache_plan, closer>;

inline plan make_plan(const pagedcache_layer &layer, const pagedcache_step &step, int32_t q_heads) {
    pagedcache_plan *made = nullptr;
    require(api().plan_make(&layer, &step, q_heads, &made));
    return plan(made);
}

class cache {
  public:
    explicit cache(const pagedcache_config &config) {
        pagedcache *opened = nullptr;
        require(api().open(&config, &opened));
        owned.reset(opened);
    }
    pagedcache *get() const { return owned.get(); }

    int64_t start() {
        int64_t sequence = 0;
        require(api().start(get(), 1, &sequence));
        return sequence;
    }
    int64_t fork(int64_t sequence, int64_t at = -1) {
        int64_t child = 0;
        require(api().fork(get(), sequence, at, &child));
        return child;
    }
    void truncate(int64_t sequence, int32_t position) { require(api().truncate(get(), 1, &sequence, &position)); }
    void release(int64_t sequence) { require(api().release(get(), 1, &sequence)); }
    pagedcache_stats stats() const {
        pagedcache_stats figures;
        api().stats(get(), &figures);
        return figures;
    }

  private:
    std::unique_ptr<pagedcache, closer> owned;
};

/* The open step of a cache; it must not outlive it. */
class step {
  public:
    step(cache &of, const std::vector<int64_t> &sequences, const std::vector<int32_t> &counts) : of(of.get()) {
        if (sequences.size() != counts.size()) throw error(PAGEDCACHE_INVALID, "give one count per sequence");
        require(api().extend(this->of, static_cast<int32_t>(counts.size()), sequences.data(), counts.data()));
    }
    step(const step &) = delete;
    step &operator=(const step &) = delete;
    ~step() {
        if (is_open) api().abandon(of);
    }
    const pagedcache_step &arrays() const { return *api().step(of); }
    void attend(int32_t layer, const pagedcache_tensors &tensors, const pagedcache_options *options = nullptr) {
        require(api().attend_step(of, layer, &tensors, options));
    }
    void commit() {
        require(api().commit(of));
        is_open = false;
    }

  private:
    pagedcache *of;
    bool is_open = true;
};

} // namespace paged

#endif
