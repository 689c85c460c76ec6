# Written by cudnnlite with program.c; writing a trace here again replaces both.
# CUDA: the toolkit's folder.  CUDNN: a folder with include/ and lib/, where cuDNN is not in the compiler's paths.
CUDA ?= /usr/local/cuda
CFLAGS ?= -std=c11 -O2 -Wall -Wextra
CUDNN_FLAGS = $(if $(CUDNN),-isystem $(CUDNN)/include -L$(CUDNN)/lib -Wl$(comma)-rpath$(comma)$(CUDNN)/lib)
comma := ,

program: program.c
	$(CC) $(CFLAGS) $< -o $@ -isystem $(CUDA)/include $(CUDNN_FLAGS) -L$(CUDA)/lib64 -l:libcudnn.so.9 -lcudart

run: program
	./program
