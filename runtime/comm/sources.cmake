# The groups over NCCL, for the library and for the emulated one of the tests.
set(SHERD_NCCL_SOURCES nccl_group.cc internal/nccl_devices.cc internal/nccl_link.cc internal/nccl_sum.cu)
