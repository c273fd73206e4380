#include "contrastive/summary.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "llm/format.h"

namespace contrastive {
namespace {

using llm::Counted;
using llm::FormatBytes;
using llm::FormatCount;
using llm::FormatSeconds;
using llm::OnOff;
using llm::Report;

const llm::BertConfig& SizesOf(const Encoder& encoder) {
  return std::get<llm::BertConfig>(encoder.config.sizes);
}

std::string PoolingName(const Options& o, const Encoder& encoder) {
  if (encoder.chosen_token >= 0) return "the token " + o.pooling;
  switch (encoder.head().pooling) {
    case llm::Pooling::kMean:
      return "mean";
    case llm::Pooling::kFirst:
      return "first token";
    case llm::Pooling::kLast:
      return "last token";
  }
  return "";
}

// A figure after training, and what it was before.
Report::Headline Headline(const std::string& label, double after, const double* before) {
  return {label, absl::StrFormat("%.3f", after),
          before != nullptr ? absl::StrFormat("%.3f before training", *before) : std::string()};
}

std::vector<Report::Headline> Headlines(const Options& o, const TrainingResult& r,
                                        const std::vector<llm::StepRecord>& steps) {
  const llm::StepRecord& last = steps.back();
  const Retrieval* const before = r.before ? &r.before->retrieval : nullptr;
  const Retrieval& after = r.after.retrieval;
  const auto was = [&](double Retrieval::*figure) {
    return before != nullptr ? &(before->*figure) : nullptr;
  };
  return {Headline("Recall@1", after.recall_1, was(&Retrieval::recall_1)),
          Headline("Recall@10", after.recall_10, was(&Retrieval::recall_10)),
          Headline("MRR", after.mrr, was(&Retrieval::mrr)),
          {"Pairs per second",
           FormatCount(llm::PerSecond(static_cast<double>(o.batch * last.step), steps)),
           absl::StrCat(FormatCount(static_cast<double>(last.tokens)), " tokens in ",
                        Counted(last.step, "step"))},
          {"Training time", FormatSeconds(last.seconds), "with measures on held-out pairs"},
          {"Peak memory", FormatBytes(last.peak_bytes), "of the fullest rank"}};
}

Report::Section ModelSection(const Options& o, const Encoder& encoder, const TrainingResult& r) {
  const llm::BertConfig& sizes = SizesOf(encoder);
  return {"Encoder",
          {{"Started from", o.init.empty() ? "initial values" : o.init},
           {"Parameters", FormatCount(static_cast<double>(r.parameters))},
           {"Layers", absl::StrCat(sizes.layers)},
           {"Width", absl::StrCat(sizes.dim)},
           {"Heads", absl::StrCat(sizes.heads, " of size ", sizes.head_size())},
           {"Vocabulary", absl::StrCat(sizes.vocabulary)},
           {"Tokens of a text", absl::StrCat("up to ", encoder.max_tokens)},
           {"Pooling", PoolingName(o, encoder)},
           {"Dropout", absl::StrCat(o.dropout)},
           {"Numbers", o.f64 ? "f64" : "f32"}}};
}

Report::Section TrainingSection(const Options& o) {
  return {"Training",
          {{"Batch", absl::StrCat(o.batch, " pairs, ranked against each other")},
           {"Calls of the encoder",
            absl::StrCat(o.calls, " a rank and step", o.cached ? ", one kept at a time" : "")},
           {"Temperature", absl::StrCat(o.temperature)},
           {"Symmetric", OnOff(o.symmetric)},
           {"Losses divided by", "the window's pairs on all ranks (kWindow)"},
           {"Learning rate", absl::StrCat(o.lr, " falling to ", o.min_lr)},
           {"Warm-up", Counted(o.warmup, "step")},
           {"Weight decay", absl::StrCat(o.weight_decay)},
           {"Clipping", o.clip > 0 ? absl::StrCat("norm of ", o.clip) : "off"},
           {"Seed", absl::StrCat(o.seed)}}};
}

Report::Section RunSection(const Options& o, const sherd::LaunchInfo& launch, const Data& pairs,
                           const Data& held_out) {
  llm::Report::Facts facts = llm::FactsOfRun(launch, o.threads, o.checkpoint, o.reshard);
  facts.emplace_back("Pairs to learn", absl::StrCat(pairs.set.size(), " of ", o.pairs));
  facts.emplace_back("Pairs held out", absl::StrCat(held_out.set.size(), " of ", o.held_out));
  return {"Run", std::move(facts)};
}

}  // namespace

std::string Announcement(const Options& o, const sherd::LaunchInfo& launch, const Encoder& encoder,
                         const Data& pairs, const Data& held_out) {
  const llm::BertConfig& sizes = SizesOf(encoder);
  return absl::StrCat(Counted(sizes.layers, "layer"), " of width ", sizes.dim, ", ",
                      Counted(launch.size, "rank"), ", ", o.batch, " pairs a step in ",
                      Counted(o.calls, "call"), " a rank", o.cached ? ", cached" : "", ", ",
                      pairs.set.size(), " pairs to learn and ", held_out.set.size(), " held out");
}

std::string ResultText(const TrainingResult& result) {
  std::string text =
      absl::StrFormat("%-16s%10s%10s\n", "held-out pairs", result.before ? "before" : "", "after");
  const auto line = [&](const char* name, auto figure) {
    const std::string before = result.before ? absl::StrFormat("%.4f", figure(*result.before)) : "";
    absl::StrAppendFormat(&text, "%-16s%10s%10.4f\n", name, before, figure(result.after));
  };
  line("recall@1", [](const HeldOut& h) { return h.retrieval.recall_1; });
  line("recall@10", [](const HeldOut& h) { return h.retrieval.recall_10; });
  line("mrr", [](const HeldOut& h) { return h.retrieval.mrr; });
  line("loss", [](const HeldOut& h) { return h.loss; });
  return text;
}

llm::Report MakeReport(const Options& o, const sherd::LaunchInfo& launch, const Encoder& encoder,
                       const Data& pairs, const Data& held_out, const TrainingResult& result,
                       std::vector<llm::StepRecord> steps) {
  llm::Report report;
  report.title = "A text encoder";
  report.subtitle = Announcement(o, launch, encoder, pairs, held_out);
  report.headlines = Headlines(o, result, steps);
  report.sections = {ModelSection(o, encoder, result), TrainingSection(o),
                     RunSection(o, launch, pairs, held_out)};
  report.steps = std::move(steps);
  if (result.before) {
    report.before = llm::StepRecord{.validation_loss = result.before->loss,
                                    .measures = result.before->retrieval.Measures()};
  }
  report.unit = "pair";
  report.memory = result.memory;
  return report;
}

}  // namespace contrastive
