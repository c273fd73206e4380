#pragma once

#include "sherd/runtime/kernels/internal/matmul_problem.h"

namespace sherd::kernels::internal {

// Computes a problem of f32 or bf16 that is not empty with oneDNN on the threads of `device`.
// Returns false, with nothing written, when oneDNN has no fast implementation for it on this
// processor.
bool OneDnnMatmul(const Device& device, const MatmulProblem& problem);

}  // namespace sherd::kernels::internal
