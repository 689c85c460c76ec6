/* A forward convolution in true float32, with the algorithm that cuDNN's search chooses.
 *
 * The limit of the workspace is 64 MiB. docs/howto/migrate_from_c.md shows how to build it.
 * The same program in Python: convolution_with_search.py
 */
/* The prelude has the headers, CUDA and CUDNN, which check a status, and host, which allocates. */
#include "../../cudnnlite/workbench/tracing/prelude.c"

#define WORKSPACE_LIMIT ((size_t)64 << 20)

/* Host values that another program can make too: multiples of 1/8 between -0.75 and 0.75. */
static float *ramp(size_t count, int start)
{
    float *values = host(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((int)((7 * i + (size_t)start) % 13) - 6) / 8.0f;
    return values;
}

static float *copy_to_device(const float *values, size_t count)
{
    float *device;
    CUDA(cudaMalloc((void **)&device, count * sizeof *device));
    CUDA(cudaMemcpy(device, values, count * sizeof *device, cudaMemcpyHostToDevice));
    return device;
}

int main(void)
{
    const int n = 4, c = 8, h = 28, w = 28, k = 16, taps = 3, padding = 1;
    const size_t x_count = (size_t)n * c * h * w, w_count = (size_t)k * c * taps * taps;

    cudnnHandle_t handle;
    CUDNN(cudnnCreate(&handle));
    printf("cuDNN %zu\n", cudnnGetVersion());

    /* descriptors: both tensors, the filter, the convolution */
    cudnnTensorDescriptor_t x_desc, y_desc;
    cudnnFilterDescriptor_t w_desc;
    cudnnConvolutionDescriptor_t conv_desc;
    CUDNN(cudnnCreateTensorDescriptor(&x_desc));
    CUDNN(cudnnSetTensor4dDescriptor(x_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    CUDNN(cudnnCreateFilterDescriptor(&w_desc));
    CUDNN(cudnnSetFilter4dDescriptor(w_desc, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, k, c, taps, taps));
    CUDNN(cudnnCreateConvolutionDescriptor(&conv_desc));
    CUDNN(cudnnSetConvolution2dDescriptor(conv_desc, padding, padding, 1, 1, 1, 1,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    /* The default math type would allow TF32. */
    CUDNN(cudnnSetConvolutionMathType(conv_desc, CUDNN_FMA_MATH));
    int yn, yc, yh, yw;
    CUDNN(cudnnGetConvolution2dForwardOutputDim(conv_desc, x_desc, w_desc, &yn, &yc, &yh, &yw));
    CUDNN(cudnnCreateTensorDescriptor(&y_desc));
    CUDNN(cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, yn, yc, yh, yw));
    const size_t y_count = (size_t)yn * yc * yh * yw;

    /* device memory, also for the search */
    float *x_host = ramp(x_count, 3), *w_host = ramp(w_count, 5);
    float *x_data = copy_to_device(x_host, x_count), *w_data = copy_to_device(w_host, w_count), *y_data;
    CUDA(cudaMalloc((void **)&y_data, y_count * sizeof *y_data));
    void *search_space;
    CUDA(cudaMalloc(&search_space, WORKSPACE_LIMIT));

    /* The search runs and times every algorithm, and overwrites y. */
    int room, found;
    CUDNN(cudnnGetConvolutionForwardAlgorithmMaxCount(handle, &room));
    cudnnConvolutionFwdAlgoPerf_t *results = host((size_t)room * sizeof *results);
    CUDNN(cudnnFindConvolutionForwardAlgorithmEx(handle, x_desc, x_data, w_desc, w_data, conv_desc,
        y_desc, y_data, room, &found, results, search_space, WORKSPACE_LIMIT));
    CUDA(cudaFree(search_space));
    const cudnnConvolutionFwdAlgoPerf_t *best = NULL;
    for (int i = 0; i < found && best == NULL; i++)
        if (results[i].status == CUDNN_STATUS_SUCCESS && results[i].memory <= WORKSPACE_LIMIT &&
            results[i].determinism == CUDNN_DETERMINISTIC)
            best = &results[i];
    if (best == NULL) {
        fprintf(stderr, "no deterministic algorithm fits %zu bytes of workspace\n", WORKSPACE_LIMIT);
        return EXIT_FAILURE;
    }

    /* The math type of the result is set first, because the workspace depends on it. */
    CUDNN(cudnnSetConvolutionMathType(conv_desc, best->mathType));
    size_t workspace_size;
    void *workspace = NULL;
    CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle, x_desc, w_desc, conv_desc, y_desc,
                                                  best->algo, &workspace_size));
    if (workspace_size > 0)
        CUDA(cudaMalloc(&workspace, workspace_size));
    printf("algorithm %d, workspace %zu\n", (int)best->algo, workspace_size);

    const float alpha = 1.0f, beta = 0.0f;
    CUDNN(cudnnConvolutionForward(handle, &alpha, x_desc, x_data, w_desc, w_data, conv_desc,
                                  best->algo, workspace, workspace_size, &beta, y_desc, y_data));

    float *y = host(y_count * sizeof *y);
    /* The copy waits for the convolution. */
    CUDA(cudaMemcpy(y, y_data, y_count * sizeof *y, cudaMemcpyDeviceToHost));
    double checksum = 0.0;
    for (size_t i = 0; i < y_count; i++)
        checksum += (double)(i % 5 + 1) * y[i];
    printf("shape %d %d %d %d\n", yn, yc, yh, yw);
    printf("checksum %.6f\n", checksum);
    printf("values %.6f %.6f %.6f\n", y[0], y[y_count / 2], y[y_count - 1]);

    free(y);
    free(results);
    free(w_host);
    free(x_host);
    CUDA(cudaFree(workspace));
    CUDA(cudaFree(y_data));
    CUDA(cudaFree(w_data));
    CUDA(cudaFree(x_data));
    CUDNN(cudnnDestroyTensorDescriptor(y_desc));
    CUDNN(cudnnDestroyConvolutionDescriptor(conv_desc));
    CUDNN(cudnnDestroyFilterDescriptor(w_desc));
    CUDNN(cudnnDestroyTensorDescriptor(x_desc));
    CUDNN(cudnnDestroy(handle));
    return EXIT_SUCCESS;
}
