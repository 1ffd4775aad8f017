/* The table of functions for extension modules of Python, from the installed package: nothing to link with.
 *
 *     static const pagedcache_api *pc;                   in the module's init function:
 *     if (!(pc = pagedcache_import())) return NULL;      an ImportError is set
 *
 * Functions of the table touch no Python object: call them without the GIL. */
#ifndef PAGEDCACHE_PYTHON_H
#define PAGEDCACHE_PYTHON_H

#include <Python.h>

#include "pagedcache.h"

static inline const pagedcache_api *pagedcache_import(void) {
    const pagedcache_api *api = (const pagedcache_api *)PyCapsule_Import("pagedcache.capi._C_API", 0);
    if (api && (api->version < PAGEDCACHE_API_VERSION || api->size < (int32_t)sizeof(pagedcache_api))) {
        PyErr_Format(PyExc_ImportError,
                     "this module was built for version %d of pagedcache's C interface, and version %d is installed: "
                     "upgrade pagedcache",
                     PAGEDCACHE_API_VERSION, (int)api->version);
        return NULL;
    }
    return api;
}

#endif
