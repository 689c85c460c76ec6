/* A small network for images: convolution, bias, ReLU, pooling, a fully connected layer, softmax.
 *
 * docs/howto/migrate_from_c.md shows how to build it.
 * The same program in Python: small_network.py
 */
/* The prelude has the headers, CUDA and CUDNN, which check a status, and host, which allocates. */
#include "../../cudnnlite/workbench/tracing/prelude.c"

/* Device values that another program can make too: multiples of scale/8 up to 0.75 * scale. */
static float *ramp(size_t count, int start, float scale)
{
    float *values = host(count * sizeof *values), *device;
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((int)((7 * i + (size_t)start) % 13) - 6) / 8.0f * scale;
    CUDA(cudaMalloc((void **)&device, count * sizeof *device));
    CUDA(cudaMemcpy(device, values, count * sizeof *device, cudaMemcpyHostToDevice));
    free(values);
    return device;
}

static cudnnTensorDescriptor_t tensor(int n, int c, int h, int w)
{
    cudnnTensorDescriptor_t descriptor;
    CUDNN(cudnnCreateTensorDescriptor(&descriptor));
    CUDNN(cudnnSetTensor4dDescriptor(descriptor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    return descriptor;
}

/* y = conv(x, w) + bias; the convolution determines the shape of y. */
static float *convolve(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, const float *x, const int w_shape[4],
                       const float *w, int padding, const float *bias, cudnnTensorDescriptor_t *y_desc)
{
    const float one = 1.0f, zero = 0.0f;
    cudnnFilterDescriptor_t w_desc;
    cudnnConvolutionDescriptor_t conv_desc;
    CUDNN(cudnnCreateFilterDescriptor(&w_desc));
    CUDNN(cudnnSetFilter4dDescriptor(w_desc, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, w_shape[0],
                                     w_shape[1], w_shape[2], w_shape[3]));
    CUDNN(cudnnCreateConvolutionDescriptor(&conv_desc));
    CUDNN(cudnnSetConvolution2dDescriptor(conv_desc, padding, padding, 1, 1, 1, 1,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    /* The default math type would allow TF32. */
    CUDNN(cudnnSetConvolutionMathType(conv_desc, CUDNN_FMA_MATH));
    int n, c, h, width;
    CUDNN(cudnnGetConvolution2dForwardOutputDim(conv_desc, x_desc, w_desc, &n, &c, &h, &width));
    *y_desc = tensor(n, c, h, width);
    float *y;
    CUDA(cudaMalloc((void **)&y, (size_t)n * c * h * width * sizeof *y));

    const cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    size_t workspace_size;
    void *workspace = NULL;
    CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle, x_desc, w_desc, conv_desc, *y_desc, algorithm, &workspace_size));
    if (workspace_size > 0)
        CUDA(cudaMalloc(&workspace, workspace_size));
    CUDNN(cudnnConvolutionForward(handle, &one, x_desc, x, w_desc, w, conv_desc, algorithm,
                                  workspace, workspace_size, &zero, *y_desc, y));
    cudnnTensorDescriptor_t bias_desc = tensor(1, c, 1, 1);
    CUDNN(cudnnAddTensor(handle, &one, bias_desc, bias, &one, *y_desc, y));

    CUDNN(cudnnDestroyTensorDescriptor(bias_desc));
    CUDNN(cudnnDestroyConvolutionDescriptor(conv_desc));
    CUDNN(cudnnDestroyFilterDescriptor(w_desc));
    CUDA(cudaFree(workspace));
    return y;
}

static void print(const char *name, const float *device, size_t count)
{
    float *values = host(count * sizeof *values);
    /* The copy waits for the network. */
    CUDA(cudaMemcpy(values, device, count * sizeof *values, cudaMemcpyDeviceToHost));
    double checksum = 0.0;
    for (size_t i = 0; i < count; i++)
        checksum += (double)(i % 5 + 1) * values[i];
    printf("%s checksum %.6f values %.6f %.6f %.6f\n", name, checksum, values[0], values[count / 2], values[count - 1]);
    free(values);
}

int main(void)
{
    const int n = 4, c = 3, size = 16, k = 8, classes = 10, half = size / 2;
    const int w_shape[4] = {k, c, 3, 3}, connected_shape[4] = {classes, k, half, half};
    const float one = 1.0f, zero = 0.0f;
    const size_t pooled_count = (size_t)n * k * half * half, scores_count = (size_t)n * classes;

    cudnnHandle_t handle;
    CUDNN(cudnnCreate(&handle));
    printf("cuDNN %zu\n", cudnnGetVersion());

    float *x = ramp((size_t)n * c * size * size, 3, 1.0f), *w = ramp((size_t)k * c * 9, 5, 1.0f), *bias = ramp(k, 1, 1.0f);
    float *connected = ramp((size_t)classes * k * half * half, 2, 1.0f / 64), *shift = ramp(classes, 4, 1.0f);
    float *pooled, *odds;
    CUDA(cudaMalloc((void **)&pooled, pooled_count * sizeof *pooled));
    CUDA(cudaMalloc((void **)&odds, scores_count * sizeof *odds));

    cudnnTensorDescriptor_t x_desc = tensor(n, c, size, size), pooled_desc = tensor(n, k, half, half), y_desc, scores_desc;
    cudnnActivationDescriptor_t relu_desc;
    cudnnPoolingDescriptor_t pooling_desc;
    CUDNN(cudnnCreateActivationDescriptor(&relu_desc));
    CUDNN(cudnnSetActivationDescriptor(relu_desc, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0));
    CUDNN(cudnnCreatePoolingDescriptor(&pooling_desc));
    CUDNN(cudnnSetPooling2dDescriptor(pooling_desc, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));

    float *y = convolve(handle, x_desc, x, w_shape, w, 1, bias, &y_desc);
    CUDNN(cudnnActivationForward(handle, relu_desc, &one, y_desc, y, &zero, y_desc, y));
    CUDNN(cudnnPoolingForward(handle, pooling_desc, &one, y_desc, y, &zero, pooled_desc, pooled));
    /* With a filter as large as the image, each output depends on every value. */
    float *scores = convolve(handle, pooled_desc, pooled, connected_shape, connected, 0, shift, &scores_desc);
    CUDNN(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one,
                              scores_desc, scores, &zero, scores_desc, odds));

    print("pooled", pooled, pooled_count);
    print("scores", scores, scores_count);
    print("odds", odds, scores_count);

    cudnnTensorDescriptor_t tensors[4] = {x_desc, y_desc, pooled_desc, scores_desc};
    for (int i = 0; i < 4; i++)
        CUDNN(cudnnDestroyTensorDescriptor(tensors[i]));
    CUDNN(cudnnDestroyPoolingDescriptor(pooling_desc));
    CUDNN(cudnnDestroyActivationDescriptor(relu_desc));
    float *arrays[9] = {x, w, bias, connected, shift, y, pooled, scores, odds};
    for (int i = 0; i < 9; i++)
        CUDA(cudaFree(arrays[i]));
    CUDNN(cudnnDestroy(handle));
    return EXIT_SUCCESS;
}
