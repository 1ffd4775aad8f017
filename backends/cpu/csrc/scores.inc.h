/* From products q . k to the weights of a softmax that is taken online. No include guard on purpose.
 *
 * A row is one query head of one query. Its running maximum only moves when a score exceeds it by
 * more than 8 (a factor of 2^8): until then weights are taken relative to the old one, which is
 * as exact and spares rescaling what was summed up. */

enum { PC_NAME(HIDDEN), PC_NAME(MIXED), PC_NAME(VISIBLE) };

/* Whether a query sees none, some or all of the keys [key, key + n). */
PC_INLINE int PC_NAME(sees)(const pc_sequence *sequence, const pc_query *query, int32_t key, int32_t n) {
    const int32_t end = key + n;
    if (query->seen >= 0 && end > sequence->new_begin) return PC_NAME(MIXED);
    if ((query->begin <= key && end <= query->end) || end <= query->sinks) return PC_NAME(VISIBLE);
    const int apart = end <= query->begin || query->end <= key;
    return apart && query->sinks <= key ? PC_NAME(HIDDEN) : PC_NAME(MIXED);
}

PC_INLINE int PC_NAME(sees_key)(const pc_job *job, const pc_sequence *sequence, const pc_query *query, int32_t key) {
    if (key >= sequence->new_begin && query->seen >= 0)
        return job->seen[query->seen + (key - sequence->new_begin)] != 0;
    return (query->begin <= key && key < query->end) || key < query->sinks;
}

/* Cap, slopes and mask; what is not seen, and what is beyond n, becomes -inf. */
static void PC_NAME(shape)(const pc_job *job, const pc_sequence *sequence, const pc_query *query, int32_t head,
                           int32_t key, int32_t n, int mixed, float *s) {
    const pc_rule *rule = &job->rule;
    for (int32_t j = 0; j < n; j += W) {
        vf x = v_load(s + j);
        if (rule->cap != 0) x = v_tanh(x) * rule->cap;
        if (rule->slopes) {
            const int64_t base = key + j - sequence->pad - query->position;
            vf distance = INT32_MIN <= base && base <= INT32_MAX - W
                              ? __builtin_convertvector(v_count() + (int32_t)base, vf)
                              : v_set((float)base); /* where floats lie further apart than these keys */
            if (sequence->positions)
                for (int32_t i = 0; i < W && j + i < n; i++)
                    if (key + j + i >= sequence->new_begin)
                        distance[i] = (float)(sequence->positions[key + j + i - sequence->new_begin] - query->position);
            x += distance * rule->slopes[head];
        }
        vi kept = v_count() + j < n;
        if (mixed) {
            vi at = v_count() + (key + j);
            vi visible = ((at >= query->begin) & (at < query->end)) | (at < query->sinks);
            if (query->seen >= 0)
                for (int32_t i = 0; i < W && j + i < n; i++)
                    visible[i] = -PC_NAME(sees_key)(job, sequence, query, key + j + i);
            kept &= visible;
        }
        x = (vf)(((vi)x & kept) | ((vi)v_set(-INFINITY) & ~kept));
        v_store(s + j, x);
    }
}

/* Turns products s[0..n) into weights, 0 up to the next multiple of W. Returns what the row's sums are to be
 * multiplied by. `factors` are the rule's scale times that of each key, or NULL; `l` has W partial sums. */
PC_INLINE float PC_NAME(weigh)(const pc_job *job, const pc_sequence *sequence, const pc_query *query, int32_t head,
                               int32_t key, int32_t n, int mixed, const float *factors, float *s, float *m, float *l) {
    vf most = v_set(-INFINITY);
    float rescale = 1;
    const vf scale = v_set(job->rule.scale);
    const int special = mixed || job->rule.cap != 0 || job->rule.slopes || n % W;
    for (int32_t j = 0; j < n; j += W) {
        vf x = v_load(s + j) * (factors ? v_load(factors + j) : scale);
        v_store(s + j, x);
        most = v_max(x, most);
    }
    if (special) {
        PC_NAME(shape)(job, sequence, query, head, key, n, mixed, s);
        most = v_set(-INFINITY);
        for (int32_t j = 0; j < n; j += W) most = v_max(v_load(s + j), most);
    }
    if (__builtin_expect(v_any(most > v_set(*m + 8.0f)), 0)) {
        const float next = v_largest(most);
        rescale = exp2f(*m - next);
        *m = next;
        v_store(l, v_load(l) * rescale);
    }
    const vf base = v_set(*m);
    vf sum = v_load(l);
    for (int32_t j = 0; j < n; j += W) {
        vf x = v_load(s + j), p = v_exp2(x - base);
        p = (vf)((vi)p & ~(x == v_set(-INFINITY)));
        v_store(s + j, p);
        sum += p;
    }
    v_store(l, sum);
    return rescale;
}
