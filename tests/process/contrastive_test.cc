// The parts of the contrastive example: pairs, their batches, places of documents, vocabularies and
// the files of sentence-transformers.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "contrastive/batch.h"
#include "contrastive/options.h"
#include "contrastive/pairs.h"
#include "contrastive/pooling_file.h"
#include "contrastive/retrieval.h"
#include "contrastive/training.h"
#include "contrastive/vocabulary.h"
#include "tests/support/ranks.h"

namespace contrastive {
namespace {

namespace fs = std::filesystem;
using sherd::Tensor;

std::string Write(const std::string& name, const std::string& text) {
  const fs::path path = fs::path(testing::TempDir()) / "contrastive_test" / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(ReadPairs, GivesEachTextOneNumber) {
  const auto set = ReadPairs(Write("pairs.jsonl", R"({"query": "a", "document": "A"}
{"query": "b", "document": "B", "negatives": ["A", "C"]}
{"query": "c", "document": "A"}
)"));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->texts, (std::vector<std::string>{"a", "A", "b", "B", "C", "c"}));
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->pairs[1].query, 2);
  EXPECT_EQ(set->pairs[1].document, 3);
  EXPECT_EQ(set->pairs[1].negatives, (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(set->pairs[2].document, set->pairs[0].document);
  EXPECT_EQ(set->most_negatives(), 2);
}

TEST(ReadPairs, ErrorsNameFileAndLine) {
  const std::string good = R"({"query": "a", "document": "A"})"
                           "\n";
  const auto error = [&](const std::string& line) {
    const std::string path = Write("bad.jsonl", good + line + "\n");
    const std::string message = MessageOf(ReadPairs(path).status());
    EXPECT_EQ(message.rfind(path, 0), 0U) << message;
    return message.substr(std::min(path.size(), message.size()));
  };
  EXPECT_EQ(error(R"({"query": "b"})"), ":2: key \"document\" is missing");
  EXPECT_EQ(error(R"({"query": "", "document": "B"})"), ":2: \"query\" is empty");
  EXPECT_EQ(error(R"({"query": 3, "document": "B"})"), ":2: \"query\" is an integer, not a string");
  EXPECT_EQ(error(R"({"query": "b", "document": "B", "negatives": "C"})"),
            ":2: \"negatives\" is a string, not an array");
  EXPECT_EQ(error(R"({"query": "b", "document": "B", "negatives": ["C", 1]})"),
            ":2: \"negatives\"[1] is an integer, not a string");
  EXPECT_EQ(error(R"({"query": "b", "document": "B", "negatives": [""]})"),
            ":2: \"negatives\"[0] is empty");
  EXPECT_EQ(error(R"({"query": "b", "document": "B", "negatives": ["C", "B"]})"),
            ":2: \"negatives\"[1] is the pair's own document");
  EXPECT_EQ(
      error(R"({"query": "b", "document": "A"})"),
      ": all 2 pairs have the same document and no negatives: there is no document to tell its "
      "own from");
  EXPECT_EQ(
      error(R"({"query": "a", "document": "B"})"),
      ": all 2 pairs have the same query and no negatives: there is no document to tell its own "
      "from");
  EXPECT_EQ(error(""), ": one pair and no negatives: there is no document to tell its own from");
  EXPECT_TRUE(
      ReadPairs(Write("told.jsonl", R"({"query": "a", "document": "A", "negatives": ["B"]})"))
          .ok());
}

// Every row of every call stands for the text of a pair, with a number of its own for dropout, and
// the ids find them again.
TEST(MakeBatch, RowsComeByLengthAndAreFoundAgain) {
  PairSet set;
  set.texts = {"q0", "d0", "q1", "d1", "n"};
  set.pairs = {{0, 1, {}}, {2, 3, {4, 1}}};
  const std::vector<std::vector<int64_t>> tokens = {{1, 1, 1}, {1}, {1, 1}, {1, 1, 1, 1}, {1, 1}};
  const sherd::Device device = sherd::Device::Cpu();
  const std::vector<int64_t> which = {1, 0};
  const Batch batch = MakeBatch(set, tokens, which, 4, device);
  EXPECT_EQ(batch.pairs, 2);
  ASSERT_EQ(batch.calls(), 4);
  std::vector<int64_t> rows, samples;
  size_t before = 0;
  for (size_t call = 0; call < 4; ++call) {
    ASSERT_EQ(batch.texts[call].size(), batch.samples[call].size());
    for (const int64_t text : batch.texts[call]) {
      EXPECT_GE(tokens[static_cast<size_t>(text)].size(), before);
      before = tokens[static_cast<size_t>(text)].size();
      rows.push_back(text);
    }
    samples.insert(samples.end(), batch.samples[call].begin(), batch.samples[call].end());
  }
  ASSERT_EQ(rows.size(), 6U);
  // Pair 0 has the numbers from 0 on, pair 1 those from 4 on: two texts and at most two negatives.
  EXPECT_EQ(std::set<int64_t>(samples.begin(), samples.end()),
            (std::set<int64_t>{0, 1, 4, 5, 6, 7}));
  const auto texts_at = [&](const Tensor& places) {
    std::vector<int64_t> texts;
    for (const int64_t row : places.ToHost<int64_t>()) {
      texts.push_back(rows.at(static_cast<size_t>(row)));
    }
    return texts;
  };
  EXPECT_EQ(texts_at(batch.queries), (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(texts_at(batch.documents), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(texts_at(batch.negatives), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(batch.ids.negatives.ToHost<int64_t>(), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(MakeBatch(set, tokens, which, 50, device).calls(), 6);
}

TEST(PartOf, CutsAWindowSideBySide) {
  const std::vector<int64_t> window = {5, 3, 8, 1, 0};
  std::vector<int64_t> joined;
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = PartOf(window, rank, 3);
    EXPECT_LE(part.size(), 2U);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, window);
}

// By hand, on one to three ranks: query 0 finds its document first, query 1 second, query 2 shares
// a place with all others, and query 3 has the document of query 0.
TEST(MeasureRetrieval, CountsThePlacesOfDocuments) {
  PairSet set;
  set.texts = {"q0", "d0", "q1", "d1", "q2", "d2", "q3"};
  set.pairs = {{0, 1, {}}, {2, 3, {}}, {4, 5, {}}, {6, 1, {}}};
  const std::vector<float> rows = {1, 0, 1, 0, 0.9F, 0.1F, 0, 1, 0, 0, 0.5F, 0.5F, 1, 0};
  for (const int ranks : {1, 2, 3}) {
    sherd::testing::RunRanks(ranks, [&](sherd::World& world) {
      const Tensor embeddings = Tensor::FromHost<float>(world.device(), rows, {7, 2});
      const int64_t begin = 4 * world.rank() / ranks, end = 4 * (world.rank() + 1) / ranks;
      const Retrieval r = MeasureRetrieval(set, begin, end, embeddings, world.group());
      // Scores: q0 1, 0, 0.5: first. q1 0.9, 0.1, 0.5: third. q2 0, 0, 0: third. q3 as q0.
      EXPECT_DOUBLE_EQ(r.recall_1, 2.0 / 4);
      EXPECT_DOUBLE_EQ(r.recall_10, 1.0);
      EXPECT_DOUBLE_EQ(r.mrr, (1.0 + 1.0 / 3 + 1.0 / 3 + 1.0) / 4);
    });
  }
}

// Two documents answer one query: neither stands in the other's way, and a wrong one in both of
// theirs.
TEST(MeasureRetrieval, DocumentsOfOneQueryDoNotCompete) {
  PairSet set;
  set.texts = {"q", "d0", "d1", "p", "e"};
  set.pairs = {{0, 1, {}}, {0, 2, {}}, {3, 4, {}}};
  sherd::testing::RunRanks(2, [&](sherd::World& world) {
    const auto measure = [&](float wrong) {
      const std::vector<float> rows = {1, 0, 0.9F, 0, 0.5F, 0, 0, 1, wrong, 1};
      return MeasureRetrieval(set, world.rank() == 0 ? 0 : 1, world.rank() == 0 ? 1 : 3,
                              Tensor::FromHost<float>(world.device(), rows, {5, 2}), world.group());
    };
    const Retrieval apart = measure(0.0F);
    EXPECT_DOUBLE_EQ(apart.recall_1, 1.0);
    EXPECT_DOUBLE_EQ(apart.mrr, 1.0);
    // Between both, so that the second comes behind it alone.
    const Retrieval between = measure(0.7F);
    EXPECT_DOUBLE_EQ(between.recall_1, 2.0 / 3);
    EXPECT_DOUBLE_EQ(between.mrr, (1.0 + 0.5 + 1.0) / 3);
  });
}

TEST(MeasureRetrieval, TenthIsTheLastThatCounts) {
  PairSet set;
  std::vector<float> rows = {1, 0};
  set.texts = {"q"};
  for (int64_t i = 0; i < 11; ++i) {
    set.pairs.push_back({12 + i, i + 1, {}});
    set.texts.push_back("d");
    rows.insert(rows.end(), {1.0F - 0.01F * static_cast<float>(i), 0.0F});
  }
  // Queries that are alike, and yet not one.
  for (int i = 0; i < 11; ++i) rows.insert(rows.end(), {1, 0});
  sherd::testing::RunRanks(1, [&](sherd::World& world) {
    const Tensor embeddings = Tensor::FromHost<float>(world.device(), rows, {23, 2});
    const Retrieval r = MeasureRetrieval(set, 0, 11, embeddings, world.group());
    EXPECT_DOUBLE_EQ(r.recall_1, 1.0 / 11);
    EXPECT_DOUBLE_EQ(r.recall_10, 10.0 / 11);
  });
}

TEST(MakeVocabulary, HasSpecialTokensCharactersAndFrequentWords) {
  const std::vector<std::string> texts = {"the cat", "The dog: the cat", "a dot"};
  const auto tokenizer = MakeVocabulary(texts, 100);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = [&](std::string_view text) {
    std::string joined;
    for (const int32_t id : tokenizer->Encode(text)) {
      joined += (joined.empty() ? "" : " ") + std::string(tokenizer->Token(id));
    }
    return joined;
  };
  EXPECT_EQ(tokenizer->pad(), 0);
  EXPECT_EQ(ids("the CAT"), "[CLS] the cat [SEP]");
  EXPECT_EQ(ids("dog"), "[CLS] d ##o ##g [SEP]");  // came once
  EXPECT_EQ(ids("taco:"), "[CLS] [UNK] : [SEP]");  // no word goes on with c
  EXPECT_EQ(ids("to [MASK]"), "[CLS] t ##o [MASK] [SEP]");
  // The same texts make the same vocabulary, and a small one keeps what comes most often.
  const auto small = MakeVocabulary(texts, 7);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->vocabulary(), 7);
  for (int32_t id = 0; id < 7; ++id) EXPECT_EQ(small->Token(id), tokenizer->Token(id));
  EXPECT_FALSE(MakeVocabulary(texts, 5).ok());
}

TEST(ReadFolderPooling, ReadsWhatItWrites) {
  for (const llm::Pooling pooling :
       {llm::Pooling::kMean, llm::Pooling::kFirst, llm::Pooling::kLast}) {
    for (const auto& [name, text] : FilesOfPooling({pooling, 48}, 16)) Write("st/" + name, text);
    const std::string folder = fs::path(Write("st/x", "")).parent_path();
    const auto read = ReadFolderPooling(folder);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->pooling, pooling);
    EXPECT_EQ(read->max_tokens, 48);
  }
  // What does not say how many tokens leaves it to the model.
  for (const char* none : {"{}", R"({"max_seq_length": null})"}) {
    const fs::path file = Write("open/sentence_bert_config.json", none);
    const auto open = ReadFolderPooling(file.parent_path());
    ASSERT_TRUE(open.ok()) << open.status();
    EXPECT_FALSE(open->max_tokens.has_value());
  }
  const auto plain = ReadFolderPooling(fs::path(Write("plain/x", "")).parent_path());
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->pooling.has_value());
  EXPECT_FALSE(plain->max_tokens.has_value());
}

TEST(ReadFolderPooling, ErrorsNameWhatIsNotSupported) {
  const std::string transformer = R"({"type": "m.Transformer", "path": ""})";
  const auto error = [&](const std::string& modules, const std::string& pooling,
                         const std::string& sentences = R"({"max_seq_length": 8})") {
    Write("bad/modules.json", modules);
    Write("bad/1_Pooling/config.json", pooling);
    const std::string folder =
        fs::path(Write("bad/sentence_bert_config.json", sentences)).parent_path();
    return MessageOf(ReadFolderPooling(folder).status());
  };
  const std::string both = "[" + transformer + R"(, {"type": "m.Pooling", "path": "1_Pooling"}])";
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? testing::AssertionSuccess()
                                                : testing::AssertionFailure() << text;
  };
  EXPECT_EQ(error(both, R"({"pooling_mode_cls_token": true})"), "");
  EXPECT_TRUE(contains(error("{}", "{}"), "modules.json: is an object, not an array"));
  EXPECT_TRUE(contains(error("[" + transformer + "]", "{}"), "has no module of type Pooling"));
  for (const char* path : {"", "..", "1_Pooling/../..", "/etc"}) {
    const std::string pooling = absl::StrCat(R"({"type": "m.Pooling", "path": ")", path, "\"}");
    EXPECT_TRUE(contains(error("[" + transformer + ", " + pooling + "]", "{}"),
                         absl::StrCat("[1].path is '", path, "', which names no folder in this")));
  }
  EXPECT_TRUE(contains(error("[" + transformer + R"(, {"type": "m.Pooling", "path": "1_Pooling"},
                             {"type": "m.Pooling", "path": "2_Pooling"}])",
                             "{}"),
                       "has several modules of type Pooling"));
  EXPECT_TRUE(contains(error(R"([{"type": "m.Dense", "path": "2_Dense"}])", "{}"),
                       "[0].type is m.Dense; known are Transformer, Pooling and Normalize"));
  EXPECT_TRUE(contains(error(R"([{"type": "m.Transformer", "path": "0_T"}])", "{}"),
                       "[0].path is '0_T': the transformer is not in the folder itself"));
  EXPECT_TRUE(contains(error(both, R"({"pooling_mode_max_tokens": true})"),
                       "\"pooling_mode_max_tokens\" is true, and is not supported"));
  EXPECT_TRUE(
      contains(error(both, R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})"),
               "several poolings are true"));
  EXPECT_TRUE(contains(error(both, R"({"pooling_mode_cls_token": false})"), "no pooling is true"));
  EXPECT_TRUE(
      contains(error(both, R"({"pooling_mode_cls_token": true})", R"({"max_seq_length": 0})"),
               "\"max_seq_length\" is no positive integer"));
  EXPECT_TRUE(contains(error(both, R"({"pooling_mode_cls_token": true})",
                             R"({"max_seq_length": 8, "do_lower_case": true})"),
                       "\"do_lower_case\" is true"));
}

TEST(CheckRun, SaysWhatDoesNotFitTheData) {
  PairSet pairs, one;
  pairs.pairs.resize(9);
  one.pairs.resize(1);
  const auto error = [&](const Options& options, const PairSet& held_out, int ranks) {
    return MessageOf(CheckRun(options, pairs, held_out, ranks));
  };
  const Options fits = {.pairs = "p", .held_out = "h", .batch = 9, .calls = 4};
  EXPECT_EQ(error(fits, pairs, 4), "");
  EXPECT_EQ(error(fits, one, 1), "");
  EXPECT_EQ(error(fits, pairs, 5),
            "--batch 9 on 5 ranks leaves a rank 1 pair, too few for --calls 4");
  Options other = fits;
  other.batch = 10;
  EXPECT_EQ(error(other, pairs, 1), "--batch 10 is more than the 9 pairs of p");
  other = fits;
  other.symmetric = true;
  EXPECT_EQ(error(other, pairs, 1), "");
  EXPECT_EQ(error(other, one, 1),
            "h has one pair: with --symmetric on there is no query to tell its own from");
}

TEST(FingerprintOf, FollowsFromPairsAndTokens) {
  const Data data = {.set = {.texts = {"a", "b", "c"}, .pairs = {{0, 1, {2}}, {2, 1, {}}}},
                     .tokens = {{1, 2}, {3}, {4}}};
  std::set<uint64_t> all = {FingerprintOf(data)};
  const auto with = [&](auto change) {
    Data other = data;
    change(other);
    return FingerprintOf(other);
  };
  EXPECT_EQ(*all.begin(), with([](Data&) {}));
  all.insert(with([](Data& d) { d.set.pairs[0].document = 2; }));
  all.insert(with([](Data& d) { d.set.pairs[0].query = 2; }));
  all.insert(with([](Data& d) { d.set.pairs[0].negatives = {}; }));
  all.insert(with([](Data& d) { d.set.pairs[0].negatives = {1}; }));
  all.insert(with([](Data& d) { d.set.pairs.pop_back(); }));
  all.insert(with([](Data& d) { d.tokens[1] = {4}; }));
  all.insert(with([](Data& d) { d.tokens = {{1}, {2, 3}, {4}}; }));
  EXPECT_EQ(all.size(), 8U);
}

TEST(ParseOptions, SaysWhatDoesNotGoTogether) {
  const auto error = [](std::vector<const char*> words) {
    const std::vector<const char*> needed = {"--pairs", "p", "--held_out", "h", "--out", "o"};
    words.insert(words.begin(), needed.begin(), needed.end());
    return MessageOf(ParseOptions(words).status());
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(MessageOf(ParseOptions(std::vector<const char*>{"--pairs", "p"}).status()),
            "--held_out is missing; --help lists all flags");
  EXPECT_EQ(error({"--temperature", "0"}),
            "--temperature takes a number above 0 and below 1e+06, not '0'");
  EXPECT_EQ(error({"--batch", "1"}).substr(0, 32), "--batch takes an integer of at l");
  EXPECT_EQ(error({"--init", "d", "--layers", "2"}),
            "--layers and --init exclude each other: the encoder in d is as it is");
  EXPECT_EQ(
      error({"--pooling", "[MASK]", "--export", "e"}),
      "--pooling [MASK] and --export exclude each other: sentence-transformers has no pooling "
      "of a chosen token");
  EXPECT_EQ(error({"--dim", "30", "--heads", "4"}), "--dim 30 is not divisible by --heads 4");
  EXPECT_EQ(error({"--warmup", "9", "--steps", "8"}), "--warmup 9 is longer than --steps 8");
}

}  // namespace
}  // namespace contrastive
