#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace llm {

// What the command line of `generate` decides.
struct ProgramOptions {
  bool help = false;

  std::string model;          // a Hugging Face folder, a saved state, or what has states
  std::string tokenizer;      // a folder or tokenizer.json; empty: the model's own
  std::string prompt;         // empty: what stdin has
  std::string prompt_tokens;  // "1,2,3", instead of a text
  bool print_tokens = false;  // ids instead of text

  int64_t tokens = 100;  // at most
  double temperature = 0.8;
  int64_t top_k = 0;    // 0: all
  double top_p = 1.0;   // 1: all
  bool greedy = false;  // temperature 0
  uint64_t seed = 1;
  int64_t end_token = -1;  // -1: what the folder says
  bool no_end = false;     // goes on behind it

  bool cuda = false;    // compute on CUDA devices
  int64_t threads = 1;  // of each rank
};

// Reads the arguments behind the program's name; see ParseFlags. With `--help` nothing else is
// checked. Errors: those of ParseFlags; kInvalidArgument without --model, for both kinds of prompt,
// or for flags that exclude each other.
absl::StatusOr<ProgramOptions> ParseProgramOptions(std::span<const char* const> arguments);

// The text of `--help`.
std::string ProgramHelp(std::string_view program);

// "1,2,3", blanks allowed, as ids below `vocabulary`. Errors: kInvalidArgument naming the id.
absl::StatusOr<std::vector<int64_t>> ParseTokens(const std::string& text, int64_t vocabulary);

}  // namespace llm
