/* A third party's extension module: attention over arrays of its caller's, by the table in pagedcache's capsule. */
#include <pagedcache_python.h>

static const pagedcache_api *pc;

/* attend(k, v, q, out, block_tables, kv_lens, kv_heads, head_dim, block_size): float32, one new token a sequence. */
static PyObject *attend(PyObject *self, PyObject *args) {
    enum { K, V, Q_, OUT, TABLES, LENS, ARRAYS };
    Py_buffer b[ARRAYS];
    int kv_heads, head_dim, block_size, status;
    if (!PyArg_ParseTuple(args, "y*y*y*w*y*y*iii", &b[K], &b[V], &b[Q_], &b[OUT], &b[TABLES], &b[LENS], &kv_heads,
                          &head_dim, &block_size))
        return NULL;
    const int32_t n = (int32_t)(b[LENS].len / 4);
    const Py_ssize_t block = (Py_ssize_t)4 * block_size * kv_heads * head_dim;
    pagedcache_layer layer = {.k = b[K].buf, .v = b[V].buf, .kv_heads = kv_heads, .head_dim = head_dim};
    layer.block_size = block_size;
    layer.num_blocks = (int32_t)(b[K].len / block) - 1;
    int32_t *indptr = PyMem_New(int32_t, n + 1);
    if (!indptr) return PyErr_NoMemory();
    for (int32_t i = 0; i <= n; i++) indptr[i] = i;
    pagedcache_step step = {.num_sequences = n, .num_tokens = n, .table_width = (int32_t)(b[TABLES].len / 4 / n)};
    step.block_tables = b[TABLES].buf, step.kv_lens = b[LENS].buf, step.qo_indptr = indptr;
    pagedcache_plan *plan;
    Py_BEGIN_ALLOW_THREADS status = pc->plan_make(&layer, &step, (int32_t)(b[Q_].len / 4 / n / head_dim), &plan);
    if (!status) status = pc->attend(&layer, plan, b[Q_].buf, PAGEDCACHE_FLOAT32, b[OUT].buf, 0, NULL, NULL);
    pc->plan_free(plan);
    Py_END_ALLOW_THREADS PyMem_Free(indptr);
    for (int i = 0; i < ARRAYS; i++) PyBuffer_Release(&b[i]);
    if (status) return PyErr_Format(PyExc_ValueError, "status %d: %s", status, pc->error());
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"attend", attend, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "c_module", .m_methods = methods};

PyMODINIT_FUNC PyInit_c_module(void) {
    if (!(pc = pagedcache_import())) return NULL;
    return PyModule_Create(&module);
}
