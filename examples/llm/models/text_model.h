#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/models/head_options.h"
#include "llm/models/key_value_cache.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/variable.h"
#include "sherd/autograd/visit.h"
#include "sherd/runtime/core/tensor.h"

namespace llm {

// What a model reads. Letters: B rows, T tokens of a row.
struct TextInput {
  sherd::Variable tokens;  // [B, T] of i32 or i64
  // Several documents in a row, as kernels::AttentionOptions::cu_seqlens says: tokens see those of
  // their own alone. Excludes `mask`, and is for language models.
  sherd::Tensor cu_seqlens = {};
  // [B, T]: the position of each token in its document; undefined: counted from the row's
  // beginning. Needed beside cu_seqlens where positions are learned, ignored where they rotate.
  sherd::Tensor positions = {};
  sherd::Tensor mask = {};         // [B, T], nonzero where there is a token; undefined: everywhere
  sherd::Tensor token_types = {};  // [B, T]; undefined: zeros. Of encoders.
  // [B, T], nonzero where a token may be pooled into an embedding: those behind an instruction, or
  // one chosen token with Pooling::kFirst. Undefined: as `mask`.
  sherd::Tensor pooled = {};
  // Of a decoder in evaluation: the tokens are those behind the cache's, which they see too, and
  // are added to it. Excludes documents and a mask.
  std::shared_ptr<KeyValueCache> cache = {};
  // A language model's logits of this position of every row alone, [B, 1, V]; -1: of all.
  int64_t logits_at = -1;

  const sherd::Tensor& pool_mask() const { return pooled.defined() ? pooled : mask; }
};

inline void VisitVariables(TextInput& input, const sherd::VariableVisitor& visit) {
  visit(input.tokens);
}

// A tensor as Hugging Face's folders name it: part of a parameter here.
struct WeightPart {
  std::string name;
  std::vector<int64_t> shape;  // in the folder
  bool transposed = false;     // the folder has the transpose of what is here
};

// A parameter and what it is made of: one tensor, or several one after another along the first
// dimension, which is what fused projections are.
struct NamedWeight {
  sherd::Parameter parameter;
  std::vector<WeightPart> parts;
};

// A model of text that can be read from and written to a Hugging Face folder; see pretrained.h.
class TextModel : public sherd::Module {
 public:
  // Shapes: see Head and TextInput. COLLECTIVE if the model is sharded.
  // Errors: kInvalidArgument for more tokens than positions(), those of the cache included, for
  //   cu_seqlens beside another head than that of a language model, and for a cache that is of
  //   another number of layers, beside what it excludes, or with a Recording on.
  sherd::Variable operator()(const TextInput& input);
  // As above with documents alone.
  sherd::Variable operator()(const sherd::Variable& tokens, const sherd::Tensor& cu_seqlens = {});

  // What the model ends in.
  const HeadOptions& head() const { return head_; }
  // What shards and checkpoints wrap, in the order of the forward.
  const std::vector<sherd::Module*>& layers() const { return layers_; }
  virtual int64_t positions() const = 0;
  virtual int64_t vocabulary() const = 0;
  // Elements of all parameters, each once.
  int64_t size() const;

  // The names of all parameters in a folder, in the order of parameters().
  virtual std::vector<NamedWeight> Weights() const = 0;
  // What the names of all but the head's begin with; folders of models without a head leave it out.
  virtual std::string_view base_prefix() const = 0;
  // Names that some folders have for a tensor that they have under another name too: (this, that).
  virtual std::vector<std::pair<std::string, std::string>> TiedNames() const { return {}; }

 protected:
  explicit TextModel(const HeadOptions& head) : head_(head) {}

  // Makes `layer` the next of layers(), with the name "block0", "block1", ...
  void RegisterLayer(sherd::Module& layer);

  // The parts of a call. Shapes: hidden states are [B, T, C], results those of Head.
  virtual sherd::Variable Hidden(const TextInput& input) = 0;
  // Of as many positions as `hidden` has.
  virtual sherd::Variable Logits(const sherd::Variable& hidden) = 0;
  virtual sherd::Variable Classes(const sherd::Variable& hidden, const sherd::Tensor& mask) = 0;

 private:
  sherd::Variable Forward(const TextInput& input);
  void Check(const TextInput& input) const;

  const HeadOptions head_;
  std::vector<sherd::Module*> layers_;
};

// One vector of each row. Shapes: hidden [B, T, C], mask [B, T] or undefined, result [B, C].
sherd::Variable Pool(const sherd::Variable& hidden, const sherd::Tensor& mask, Pooling pooling);

// An embedding from hidden states, as the options say.
sherd::Variable Embed(const sherd::Variable& hidden, const sherd::Tensor& mask,
                      const HeadOptions& head);

}  // namespace llm
