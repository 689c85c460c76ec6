/*
 * libcuda.so.1 for a process in which cuDNN plans for a GPU that is not there.
 *
 * cuDNN needs the driver's library to be loaded, and loads what it compiled into the driver to make
 * a plan final.  Here no device exists, so nothing can be allocated or launched, and code that is
 * loaded goes nowhere: the handles that are returned are numbers that nothing looks at.
 */

#include <stddef.h>

enum { SUCCESS = 0, NO_DEVICE = 100 };

/* A module, library, kernel or function of which nobody asks more than that it exists. */
static int placeholder;

static int give_placeholder(void **object)
{
    if (object != NULL)
        *object = &placeholder;
    return SUCCESS;
}

/* Whatever has to do with devices, contexts, streams and launches fails. */
#define FAIL(function) \
    int function(void) { return NO_DEVICE; }

FAIL(cuInit)
FAIL(cuDriverGetVersion)
FAIL(cuDeviceGet)
FAIL(cuDeviceGetCount)
FAIL(cuDeviceGetAttribute)
FAIL(cuCtxGetCurrent)
FAIL(cuCtxGetDevice)
FAIL(cuCtxGetLimit)
FAIL(cuCtxPushCurrent)
FAIL(cuCtxPopCurrent)
FAIL(cuStreamGetCtx)
FAIL(cuLaunchKernel)
FAIL(cuLaunchKernelEx)
FAIL(cuLaunchCooperativeKernel)
FAIL(cuOccupancyMaxPotentialClusterSize)
FAIL(cuLinkCreate)
FAIL(cuLinkAddData)
FAIL(cuLinkComplete)
FAIL(cuLinkDestroy)
FAIL(cuLibraryLoadFromFile)

/* Texts of errors: callers read them if the status says that there is one. */
FAIL(cuGetErrorName)
FAIL(cuGetErrorString)

/* Code is taken and forgotten. */
int cuModuleLoadData(void **module, const void *image)
{
    (void)image;
    return give_placeholder(module);
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    (void)name;
    return give_placeholder(function);
}

int cuModuleUnload(void *module)
{
    (void)module;
    return SUCCESS;
}

int cuLibraryLoadData(void **library, const void *code, void *jit_options, void *jit_values,
                      unsigned jit_count, void *options, void *values, unsigned count)
{
    (void)code;
    (void)jit_options;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return give_placeholder(library);
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library;
    (void)name;
    return give_placeholder(kernel);
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return SUCCESS;
}

int cuKernelGetFunction(void **function, void *kernel)
{
    (void)kernel;
    return give_placeholder(function);
}

int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute;
    (void)value;
    (void)kernel;
    (void)device;
    return SUCCESS;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    enum { MAX_THREADS_PER_BLOCK = 0, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
    int is_size = attribute == MAX_THREADS_PER_BLOCK || attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES;

    (void)kernel;
    (void)device;
    if (value != NULL)
        *value = is_size ? 1024 : 0;
    return SUCCESS;
}

/* Descriptors of tensors in memory are filled in when a kernel is launched. */
int cuTensorMapEncodeTiled(void)
{
    return SUCCESS;
}

int cuTensorMapEncodeIm2col(void)
{
    return SUCCESS;
}
