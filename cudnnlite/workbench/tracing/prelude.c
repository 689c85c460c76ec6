#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA(call)                                                                                     \
    do {                                                                                               \
        cudaError_t error_ = (call);                                                                   \
        if (error_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            exit(EXIT_FAILURE);                                                                        \
        }                                                                                              \
    } while (0)

#define CUDNN(call)                                                                 \
    do {                                                                            \
        cudnnStatus_t status_ = (call);                                             \
        if (status_ != CUDNN_STATUS_SUCCESS) {                                      \
            char message_[512] = "";                                                \
            cudnnGetLastErrorString(message_, sizeof message_);                     \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,       \
                    cudnnGetErrorString(status_), message_);                        \
            exit(EXIT_FAILURE);                                                     \
        }                                                                           \
    } while (0)

/* For a call that failed in Python: says how it ends here, and goes on. */
#define FAILED(call) printf("%s: %s\n", #call, cudnnGetErrorString(call))

/* Returns host memory, and ends the program where there is none. */
static inline void *host(size_t nbytes)
{
    void *memory = malloc(nbytes);
    if (memory == NULL) {
        fprintf(stderr, "out of host memory: %zu bytes\n", nbytes);
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* Returns host memory with a number that a graph reads whenever it is executed. */
static inline void *by_value(const void *number, size_t nbytes)
{
    return memcpy(host(nbytes), number, nbytes);
}

static inline unsigned char *contents(size_t nbytes, const char *path, long offset)
{
    unsigned char *bytes = host(nbytes);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, offset, SEEK_SET) != 0 || fread(bytes, 1, nbytes, file) != nbytes) {
        fprintf(stderr, "%s: no %zu bytes at %ld\n", path, nbytes, offset);
        exit(EXIT_FAILURE);
    }
    fclose(file);
    return bytes;
}

/* Copies what stands in a file, from an offset on, into device memory. */
static inline void load(void *device, size_t nbytes, const char *path, long offset)
{
    unsigned char *bytes = contents(nbytes, path, offset);
    CUDA(cudaMemcpy(device, bytes, nbytes, cudaMemcpyHostToDevice));
    free(bytes);
}

/* Fills device memory from an offset of a sequence on, which a seed begins: floating-point numbers of `width` bytes below 2. */
static inline void generate(void *device, size_t nbytes, size_t width, uint64_t seed, long offset)
{
    unsigned char *bytes = host(nbytes);
    for (size_t i = 0; i < nbytes; i++) {
        uint64_t mixed = (seed << 40 | ((uint64_t)offset + i)) * 0x9e3779b97f4a7c15u;
        mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
        bytes[i] = (unsigned char)(mixed >> 56);
        if (i % width == width - 1) /* sign, and most of the exponent */
            bytes[i] = (bytes[i] & 0x80) | 0x3f;
    }
    CUDA(cudaMemcpy(device, bytes, nbytes, cudaMemcpyHostToDevice));
    free(bytes);
}

/* Copies what stands in a file into rows of device memory, which are `pitch` bytes apart. */
static inline void load_rows(void *device, size_t pitch, size_t width, size_t rows, const char *path)
{
    unsigned char *bytes = contents(width * rows, path, 0);
    CUDA(cudaMemcpy2D(device, pitch, bytes, width, width, rows, cudaMemcpyHostToDevice));
    free(bytes);
}

static inline void print_sum(const char *name, unsigned char *bytes, size_t nbytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < nbytes; i++)
        sum += (2 * (uint64_t)i + 1) * bytes[i];
    printf("%s %016llx\n", name, (unsigned long long)sum);
    free(bytes);
}

/* Waits, and prints a checksum of device memory: the sum of (2 i + 1) times byte i, modulo 2^64. */
static inline void report(const char *name, const void *device, size_t nbytes)
{
    unsigned char *bytes = host(nbytes);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(bytes, device, nbytes, cudaMemcpyDeviceToHost));
    print_sum(name, bytes, nbytes);
}

/* Does the same with rows of device memory, without what lies between them. */
static inline void report_rows(const char *name, const void *device, size_t pitch, size_t width, size_t rows)
{
    unsigned char *bytes = host(width * rows);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy2D(bytes, width, device, pitch, width, rows, cudaMemcpyDeviceToHost));
    print_sum(name, bytes, width * rows);
}
