#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sherd/runtime/core/shape.h"

namespace sherd::testing {

// One tensor of a golden entry.
struct GoldenTensor {
  Shape shape;
  std::vector<double> values;
};

// What PyTorch computed in f64 for one function; see tests/golden/golden.py, which writes it.
struct GoldenEntry {
  std::string name;
  std::string operands;             // Operand::ToString of each, joined by "; "
  GoldenTensor out;                 // the value
  std::vector<GoldenTensor> grads;  // of each operand that wants one, in their order
};

// The entries of tests/golden/data/<part>.txt. Lines of it:
//   entry <name> / operands <text> / out <shape> <values> / grad <shape> <values>
// where a shape is its extents joined by commas ("scalar" for none). Throws std::runtime_error
// naming the file and the line if it cannot be read.
std::vector<GoldenEntry> ReadGolden(const std::string& part);

}  // namespace sherd::testing
