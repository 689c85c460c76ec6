/* The forward pass of a bidirectional LSTM in true float32.
 *
 * It has two layers, and three sequences of different lengths.
 * docs/howto/migrate_from_c.md shows how to build it.
 * The same program in Python: lstm_forward.py
 */
/* The prelude has the headers, CUDA and CUDNN, which check a status, and host, which allocates. */
#include "../../cudnnlite/workbench/tracing/prelude.c"

enum { STEPS = 6, BATCH = 3, INPUT = 5, HIDDEN = 8, LAYERS = 2, DIRECTIONS = 2, GATES = 4 };

/* Host values that another program can make too: multiples of 1/8 between -0.75 and 0.75. */
static float *ramp(size_t count, int start)
{
    float *values = host(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((int)((7 * i + (size_t)start) % 13) - 6) / 8.0f;
    return values;
}

/* Fill the matrix or bias at an address with values that depend on `number`. */
static void fill(cudnnTensorDescriptor_t desc, void *address, int number)
{
    cudnnDataType_t type;
    int rank, shape[3], strides[3];
    CUDNN(cudnnGetTensorNdDescriptor(desc, 3, &type, &rank, shape, strides));
    if (address == NULL || type != CUDNN_DATA_FLOAT || rank != 3) {
        fprintf(stderr, "weight %d: address %p, type %d, rank %d\n", number, address, (int)type, rank);
        exit(EXIT_FAILURE);
    }
    const size_t count = (size_t)shape[0] * shape[1] * shape[2];
    float *values = ramp(count, number);
    CUDA(cudaMemcpy(address, values, count * sizeof *values, cudaMemcpyHostToDevice));
    free(values);
}

static void print_values(const char *name, const float *device, size_t count)
{
    float *values = host(count * sizeof *values);
    /* The copy waits for the LSTM. */
    CUDA(cudaMemcpy(values, device, count * sizeof *values, cudaMemcpyDeviceToHost));
    double checksum = 0.0;
    for (size_t i = 0; i < count; i++)
        checksum += (double)(i % 5 + 1) * values[i];
    printf("%s checksum %.6f values %.6f %.6f %.6f\n", name, checksum, values[0], values[count / 2], values[count - 1]);
    free(values);
}

int main(void)
{
    const int lengths[BATCH] = {6, 4, 2};
    const int state_shape[3] = {LAYERS * DIRECTIONS, BATCH, HIDDEN};
    const int state_strides[3] = {BATCH * HIDDEN, HIDDEN, 1};
    const size_t x_count = (size_t)STEPS * BATCH * INPUT;
    const size_t y_count = (size_t)STEPS * BATCH * DIRECTIONS * HIDDEN;
    const size_t state_count = (size_t)LAYERS * DIRECTIONS * BATCH * HIDDEN;

    cudnnHandle_t handle;
    CUDNN(cudnnCreate(&handle));
    printf("cuDNN %zu\n", cudnnGetVersion());

    /* descriptors: the network, its sequences, its states */
    cudnnRNNDescriptor_t rnn;
    CUDNN(cudnnCreateRNNDescriptor(&rnn));
    /* The default math type would allow TF32. */
    CUDNN(cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS,
                                   CUDNN_BIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT,
                                   CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, INPUT, HIDDEN, HIDDEN,
                                   LAYERS, NULL, CUDNN_RNN_PADDED_IO_ENABLED));
    float padding_fill = 0.0f;
    cudnnRNNDataDescriptor_t x_desc, y_desc;
    CUDNN(cudnnCreateRNNDataDescriptor(&x_desc));
    CUDNN(cudnnSetRNNDataDescriptor(x_desc, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, STEPS, BATCH,
                                    INPUT, lengths, &padding_fill));
    CUDNN(cudnnCreateRNNDataDescriptor(&y_desc));
    CUDNN(cudnnSetRNNDataDescriptor(y_desc, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, STEPS, BATCH,
                                    DIRECTIONS * HIDDEN, lengths, &padding_fill));
    cudnnTensorDescriptor_t state_desc, matrix_desc, bias_desc;
    CUDNN(cudnnCreateTensorDescriptor(&state_desc));
    CUDNN(cudnnSetTensorNdDescriptor(state_desc, CUDNN_DATA_FLOAT, 3, state_shape, state_strides));
    CUDNN(cudnnCreateTensorDescriptor(&matrix_desc));
    CUDNN(cudnnCreateTensorDescriptor(&bias_desc));

    /* The weights are in one buffer. cuDNN returns the address of each matrix and bias in it. */
    size_t weight_size;
    void *weights;
    CUDNN(cudnnGetRNNWeightSpaceSize(handle, rnn, &weight_size));
    CUDA(cudaMalloc(&weights, weight_size));
    CUDA(cudaMemset(weights, 0, weight_size));
    int number = 0;
    for (int layer = 0; layer < LAYERS * DIRECTIONS; layer++)
        /* The parts are those of the input (i, f, g, o), then the recurrent ones. */
        for (int part = 0; part < 2 * GATES; part++) {
            void *matrix, *bias;
            CUDNN(cudnnGetRNNWeightParams(handle, rnn, layer, weight_size, weights, part,
                                          matrix_desc, &matrix, bias_desc, &bias));
            fill(matrix_desc, matrix, number++);
            fill(bias_desc, bias, number++);
        }

    /* data, and the scratch memory that this network needs with these sequences */
    float *x_host = ramp(x_count, 3), *x, *y, *hy, *cy;
    CUDA(cudaMalloc((void **)&x, x_count * sizeof *x));
    CUDA(cudaMemcpy(x, x_host, x_count * sizeof *x, cudaMemcpyHostToDevice));
    CUDA(cudaMalloc((void **)&y, y_count * sizeof *y));
    CUDA(cudaMalloc((void **)&hy, state_count * sizeof *hy));
    CUDA(cudaMalloc((void **)&cy, state_count * sizeof *cy));
    size_t workspace_size, reserve_size;
    void *workspace = NULL;
    CUDNN(cudnnGetRNNTempSpaceSizes(handle, rnn, CUDNN_FWD_MODE_INFERENCE, x_desc, &workspace_size, &reserve_size));
    if (workspace_size > 0)
        CUDA(cudaMalloc(&workspace, workspace_size));

    /* Null pointers are first states of zeros. The data descriptors have the lengths. */
    CUDNN(cudnnRNNForward(handle, rnn, CUDNN_FWD_MODE_INFERENCE, NULL, x_desc, x, y_desc, y, state_desc, NULL, hy,
                          state_desc, NULL, cy, weight_size, weights, workspace_size, workspace, 0, NULL));

    print_values("y", y, y_count);
    print_values("hy", hy, state_count);
    print_values("cy", cy, state_count);

    free(x_host);
    CUDA(cudaFree(workspace));
    CUDA(cudaFree(cy));
    CUDA(cudaFree(hy));
    CUDA(cudaFree(y));
    CUDA(cudaFree(x));
    CUDA(cudaFree(weights));
    CUDNN(cudnnDestroyTensorDescriptor(bias_desc));
    CUDNN(cudnnDestroyTensorDescriptor(matrix_desc));
    CUDNN(cudnnDestroyTensorDescriptor(state_desc));
    CUDNN(cudnnDestroyRNNDataDescriptor(y_desc));
    CUDNN(cudnnDestroyRNNDataDescriptor(x_desc));
    CUDNN(cudnnDestroyRNNDescriptor(rnn));
    CUDNN(cudnnDestroy(handle));
    return EXIT_SUCCESS;
}
