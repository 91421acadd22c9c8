// Random cases: what they cover, that wrong operations do not get through them, and how they are made small.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "runner/case_file.h"
#include "runner/fuzz_case.h"
#include "runner/run_case.h"
#include "runner/schema_command.h"
#include "runner/shrink_case.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kMostTokens = 64;

CaseSpec parse(const Json& keys) {
  return parse_case_file(file_with_case(keys), "").front();
}

void collect_keys(const Json& value, const std::string& name, std::set<std::string>& keys) {
  if (!name.empty()) keys.insert(name);
  if (!value.is_object()) return;
  for (const auto& item : value.items()) {
    collect_keys(item.value(), name.empty() ? item.key() : name + "." + item.key(), keys);
  }
}

TEST(FuzzCase, DependsOnSeedAndNumberAlone) {
  FuzzCase once = make_fuzz_case(3, 17, kMostTokens);
  EXPECT_EQ(once.keys, make_fuzz_case(3, 17, kMostTokens).keys);
  EXPECT_NE(once.keys, make_fuzz_case(3, 18, kMostTokens).keys);
  EXPECT_NE(once.keys, make_fuzz_case(4, 17, kMostTokens).keys);
  EXPECT_EQ(once.keys.at("id"), "fuzz-3-17");
}

TEST(FuzzCase, HalfAreInvalidAndAllAreCasesOfAFile) {
  constexpr int kCases = 3000;
  int invalid = 0;
  for (int i = 0; i < kCases; ++i) {
    FuzzCase drawn = make_fuzz_case(0, i, kMostTokens);
    CaseSpec spec;
    ASSERT_NO_THROW(spec = parse(drawn.keys)) << drawn.keys.dump();
    EXPECT_LE(spec.tokens(), kMostTokens);
    EXPECT_EQ(spec.expected_error.has_value(), drawn.pinned.count("/expect/error") > 0);
    invalid += spec.expected_error.has_value();
  }
  EXPECT_NEAR(invalid, kCases / 2, kCases / 20);
}

// The schema names every key of a case, members too, in its sweep.
TEST(FuzzCase, EveryKeyOfTheCaseFileVaries) {
  std::set<std::string> drawn;
  for (int i = 0; i < 5000; ++i) collect_keys(make_fuzz_case(1, i, kMostTokens).keys, "", drawn);
  for (const char* key : {"slots.padding", "misuse.tensor", "expect.error"})
    EXPECT_TRUE(drawn.count(key)) << key;
  Json schema = Json::parse(case_file_schema());
  const Json& keys = schema.at("$defs").at("sweep").at("properties");
  EXPECT_GT(keys.size(), 60u);
  // longrope has R/2 factors, and what makes a call invalid or smaller may change R.
  const std::set<std::string> of_longrope = {"table.scaling.short_factor", "table.scaling.long_factor",
                                             "table.scaling.max_position_embeddings"};
  for (const auto& item : keys.items()) {
    if (of_longrope.count(item.key())) continue;
    EXPECT_TRUE(drawn.count(item.key()))
        << item.key() << " is never drawn: see fuzz_valid.cpp and fuzz_invalid.cpp";
  }
}

TEST(FuzzCase, TheOperationPasses) {
  for (int i = 0; i < 400; ++i) {
    FuzzCase drawn = make_fuzz_case(2, i, kMostTokens);
    CaseResult result = run_case(parse(drawn.keys), c10::kCPU, fused_qk_rope_reshape_and_cache);
    bool is_expected = drawn.pinned.empty() ? result.disposition == Disposition::passed
                                            : result.disposition == Disposition::rejected_as_expected;
    EXPECT_TRUE(is_expected) << drawn.keys.dump() << '\n' << result.message;
  }
}

// Right results that an earlier oracle did not take.
TEST(FuzzCase, WhereRoundingIsAllThatIsLeft) {
  for (
      const char* text :
      {R"({"id": "products that cancel in a saturating cache", "kv_heads": 4, "head_dim": 512, "num_tokens": 2,
            "dtype": "fp32", "table_dtype": "bf16", "kv_cache_dtype": "fp8_e4m3", "table": {"base": 500000},
            "positions": {"offsets": {"values": [0, -3]}, "start": 31}, "inputs": {"values": "extremes"}, "seed": 3312})",
       R"({"id": "a rotation that is zero in fp32, times infinity", "dtype": "fp32", "scales": {"k": 0},
            "inputs": {"values": "extremes"}, "seed": 1})"}) {
    CaseResult result = run_case(parse(Json::parse(text)), c10::kCPU, fused_qk_rope_reshape_and_cache);
    EXPECT_EQ(result.disposition, Disposition::passed) << text << result.message;
  }
}

// What a call looks like that was accepted: outputs of the right shape.
FusedOutputs accept_everything(const FusedArguments& args) {
  at::Tensor q_out = at::zeros({args.q.size(0), args.q.size(1) * args.q.size(2)}, args.q.options());
  return {q_out, at::zeros_like(args.k), args.key_cache, args.value_cache, args.zeros_out};
}

TEST(FuzzCase, AnInvalidCaseThatIsAcceptedFails) {
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    FuzzCase drawn = make_fuzz_case(5, i, kMostTokens);
    bool is_misused = drawn.keys.contains("misuse");  // of which the above knows too little
    if (drawn.pinned.empty() || is_misused) continue;
    CaseResult result = run_case(parse(drawn.keys), c10::kCPU, accept_everything);
    EXPECT_EQ(result.disposition, Disposition::failed) << drawn.keys.dump();
    EXPECT_NE(result.message.find("but the call returned"), std::string::npos) << result.message;
    ++accepted;
  }
  EXPECT_GT(accepted, 50);
}

TEST(FuzzCase, AnErrorThatNamesAnotherArgumentFails) {
  auto raise = [](const FusedArguments&) -> FusedOutputs {
    TORCH_CHECK_VALUE(false, "op: kittens: are small");
  };
  for (int i = 0; i < 200; ++i) {
    FuzzCase drawn = make_fuzz_case(6, i, kMostTokens);
    if (drawn.pinned.empty()) continue;
    CaseResult result = run_case(parse(drawn.keys), c10::kCPU, raise);
    EXPECT_EQ(result.disposition, Disposition::failed) << drawn.keys.dump();
  }
}

// --- Shrinking

TEST(ShrinkCase, LeavesWhatTheFailureNeeds) {
  FuzzCase failing;
  failing.keys =
      Json::parse(R"({"id": "a", "num_tokens": 37, "q_heads": 8, "layout": "x_split", "seed": 12345,
    "table": {"width": "full", "rows": 100}, "slots": {"values": [4, 5, 6, -1], "dtype": "int32"},
    "scales": {"k": 0.3, "v": [2, 0.25]}})");
  int runs = 0;
  Json shrunk = shrink_case(
      failing,
      [&](const Json& keys) {
        ++runs;
        bool has_padding = keys.contains("slots") && keys["slots"].contains("values") &&
                           keys["slots"]["values"].size() >= 2 && keys["slots"]["values"].back() < 0;
        return keys.value("num_tokens", 0) >= 5 && keys.value("layout", "") == "x_split" && has_padding;
      },
      1000);
  EXPECT_EQ(shrunk,
            Json::parse(R"({"id": "a", "num_tokens": 5, "layout": "x_split", "slots": {"values": [0, -1]}})"))
      << shrunk.dump();
  EXPECT_LT(runs, 300);
}

TEST(ShrinkCase, PinnedKeysAndTheNameStay) {
  FuzzCase failing;
  failing.keys = Json::parse(
      R"({"id": "a", "q_heads": 7, "kv_heads": 2, "slots": {"values": [9, 9], "dtype": "int32"}})");
  failing.pinned = {"/q_heads", "/slots/values"};
  Json shrunk = shrink_case(
      failing, [](const Json&) { return true; }, 1000);
  EXPECT_EQ(shrunk, Json::parse(R"({"id": "a", "q_heads": 7, "slots": {"values": [9, 9]}})"))
      << shrunk.dump();
}

TEST(ShrinkCase, StopsAfterItsRuns) {
  FuzzCase failing = make_fuzz_case(0, 1, kMostTokens);
  int runs = 0;
  shrink_case(
      failing, [&](const Json&) { return ++runs, false; }, 7);
  EXPECT_EQ(runs, 7);
}

// A planted fault: the window table is not used with fp8 caches.
FusedOutputs without_window_in_fp8(FusedArguments args) {
  if (args.swa_slot_mapping && args.key_cache.element_size() == 1) args.swa_slot_mapping.reset();
  return fused_qk_rope_reshape_and_cache(args);
}

TEST(ShrinkCase, FindsAndShrinksAPlantedFault) {
  for (int i = 0; i < 2000; ++i) {
    FuzzCase drawn = make_fuzz_case(7, i, kMostTokens);
    if (!drawn.pinned.empty()) continue;
    auto fails = [](const Json& keys) {
      try {
        CaseResult result = run_case(parse(keys), c10::kCPU, without_window_in_fp8);
        return result.disposition == Disposition::failed;
      } catch (const FileError&) {
        return false;
      }
    };
    if (!fails(drawn.keys)) continue;
    Json shrunk = shrink_case(drawn, fails, 500);
    EXPECT_TRUE(fails(shrunk));
    EXPECT_TRUE(shrunk.contains("kv_cache_dtype") && shrunk["slots"].contains("swa")) << shrunk.dump();
    EXPECT_LE(shrunk.size(), 5u) << shrunk.dump();
    return;
  }
  FAIL() << "the fault was not found";
}

}  // namespace
}  // namespace kvrope::regress
