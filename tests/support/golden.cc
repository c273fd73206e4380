#include "tests/support/golden.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace sherd::testing {
namespace {

GoldenTensor ReadTensor(std::istringstream& line) {
  GoldenTensor tensor;
  std::string extents;
  line >> extents;
  std::vector<int64_t> shape;
  if (extents != "scalar") {
    std::istringstream list(extents);
    for (std::string extent; std::getline(list, extent, ',');) shape.push_back(std::stoll(extent));
  }
  tensor.shape = Shape(shape);
  for (std::string word; line >> word;) tensor.values.push_back(std::stod(word));
  if (static_cast<int64_t>(tensor.values.size()) != tensor.shape.numel()) {
    throw std::runtime_error("the values do not fill " + tensor.shape.ToString());
  }
  return tensor;
}

void ReadLine(const std::string& text, std::vector<GoldenEntry>& entries) {
  std::istringstream line(text);
  std::string word;
  line >> word;
  if (word == "entry") {
    std::getline(line >> std::ws, entries.emplace_back().name);
  } else if (entries.empty()) {
    throw std::runtime_error("a line before the first entry");
  } else if (word == "operands") {
    std::getline(line >> std::ws, entries.back().operands);
  } else if (word == "out") {
    entries.back().out = ReadTensor(line);
  } else if (word == "grad") {
    entries.back().grads.push_back(ReadTensor(line));
  } else {
    throw std::runtime_error("an unknown word '" + word + "'");
  }
}

}  // namespace

std::vector<GoldenEntry> ReadGolden(const std::string& part) {
  const std::string path = std::string(SHERD_GOLDEN_DIR) + "/" + part + ".txt";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<GoldenEntry> entries;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (text.empty() || text[0] == '#') continue;
    try {
      ReadLine(text, entries);
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  return entries;
}

}  // namespace sherd::testing
