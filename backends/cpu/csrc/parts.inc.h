/* Rows become results: written out, or kept as a part and merged later. No include guard on purpose. */

/* out = acc / (l + the sink's weight), and lse. `acc` is changed. */
static void PC_NAME(finish)(const pc_job *job, int32_t token, int32_t head, float m, float l, float *acc) {
    const int32_t heads = job->out.heads, width = job->out.width;
    char *out = job->out.data + ((int64_t)token * heads + head) * width * PC_SIZE(job->out.dtype);
    float sink = job->rule.sink_logits ? job->rule.sink_logits[head] : -INFINITY, factor = 1;
    if (sink > m) {
        factor = exp2f(m - sink);
        l *= factor;
        m = sink;
    }
    if (sink > -INFINITY) l += exp2f(sink - m);
    const float inverse = l == 0 ? 0 : factor / l;
    int32_t i = 0;
    for (; i + W <= width; i += W) v_store(acc + i, v_load(acc + i) * inverse);
    for (; i < width; i++) acc[i] *= inverse;
    PC_NAME(convert)(PC_F32, acc, job->out.dtype, out, width);
    if (job->lse)
        job->lse[(int64_t)token * heads + head] = l == 0 ? -INFINITY : (float)(m * 0.693147180559945309 + log(l));
}

/* What an item found out about a row: all there is, or one part of it. */
static void PC_NAME(deliver)(const pc_job *job, const pc_item *item, int32_t token, int32_t head, float m, float l,
                             float *acc) {
    if (item->part < 0) {
        PC_NAME(finish)(job, token, head, m, l, acc);
        return;
    }
    const int64_t width = pc_part_width(job);
    float *part = job->parts + ((int64_t)(job->first_part[token] + item->part) * job->q.heads + head) * width;
    memcpy(part, acc, job->v.width * sizeof *part);
    part[width - 2] = m;
    part[width - 1] = l;
}

/* Parts of a token, in their order. One that saw no key counts for nothing. */
static void PC_NAME(merge_parts)(const pc_job *job, int32_t token, void *scratch) {
    const int64_t width = pc_part_width(job), stride = width * job->q.heads;
    const int32_t from = job->first_part[token], to = job->first_part[token + 1], size = job->v.width;
    float *acc = (float *)scratch;
    for (int32_t head = 0; head < job->q.heads; head++) {
        const float *part = job->parts + from * stride + head * width;
        float most = PC_NEVER, l = 0;
        for (int32_t i = 0; i < to - from; i++) {
            const float *p = part + i * stride;
            if (p[width - 1] != 0 && p[width - 2] > most) most = p[width - 2];
        }
        memset(acc, 0, size * sizeof *acc);
        for (int32_t i = 0; i < to - from; i++) {
            const float *p = part + i * stride;
            if (p[width - 1] == 0) continue;
            const float factor = exp2f(p[width - 2] - most);
            l += p[width - 1] * factor;
            int32_t d = 0;
            for (; d + W <= size; d += W) v_store(acc + d, v_load(acc + d) + v_load(p + d) * factor);
            for (; d < size; d++) acc[d] += p[d] * factor;
        }
        PC_NAME(finish)(job, token, head, most, l, acc);
    }
}
