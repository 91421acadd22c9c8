// Case files: precedence, sweeps and names, and the error of every kind of mistake.
#include "runner/case_file.h"

#include <gtest/gtest.h>

#include "runner/json_document.h"

namespace kvrope::regress {
namespace {

std::vector<CaseSpec> parse(const std::string& members) {
  return parse_case_file(R"({"schema_version": 1, )" + members + "}", "test.json");
}

std::vector<std::string> names(const std::vector<CaseSpec>& cases) {
  std::vector<std::string> result;
  for (const CaseSpec& spec : cases) result.push_back(spec.name);
  return result;
}

std::string error_of(const std::string& members) {
  try {
    parse(members);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::string case_error(const std::string& keys) {
  return error_of(R"("cases": [{"id": "a", )" + keys + "}]");
}

TEST(CaseFile, LaterLayersWin) {
  auto cases = parse(R"("defaults": {"num_tokens": 1, "q_heads": 16, "head_dim": 128, "block_size": 32},
                        "sweep": {"head_dim": [80]},
                        "cases": [{"id": "a"}, {"id": "b", "q_heads": 4, "head_dim": 64, "sweep": {"num_tokens": [7]}}])");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].tokens(), 1);
  EXPECT_EQ(cases[0].q_heads, 16);
  EXPECT_EQ(cases[0].head_dim, 80);
  EXPECT_EQ(cases[1].tokens(), 7);
  EXPECT_EQ(cases[1].q_heads, 4);
  EXPECT_EQ(cases[1].head_dim, 80);
  EXPECT_EQ(cases[1].block_size, 32);
}

TEST(CaseFile, NamesHaveTheSweptValuesInTheFilesOrder) {
  auto cases = parse(R"("sweep": {"num_tokens": [7, 8]},
                        "cases": [{"id": "a", "sweep": {"style": ["neox", "gptj"], "table.width": ["full"]}}])");
  EXPECT_EQ(names(cases),
            (std::vector<std::string>{
                "a/num_tokens=7/style=neox/table.width=full", "a/num_tokens=7/style=gptj/table.width=full",
                "a/num_tokens=8/style=neox/table.width=full", "a/num_tokens=8/style=gptj/table.width=full"}));
  EXPECT_TRUE(cases[0].is_neox);
  EXPECT_FALSE(cases[1].is_neox);
  EXPECT_EQ(cases[0].table_width(), 128);
}

TEST(CaseFile, ACasesListReplacesTheFiles) {
  auto cases =
      parse(R"("sweep": {"num_tokens": [7, 8]}, "cases": [{"id": "a", "sweep": {"num_tokens": [3]}}])");
  EXPECT_EQ(names(cases), std::vector<std::string>{"a/num_tokens=3"});
}

TEST(CaseFile, ObjectsOverrideKeyByKeyAndAPatternStartsAfresh) {
  auto cases =
      parse(R"("defaults": {"positions": {"values": [4, 5], "dtype": "int32"}, "table": {"base": 5e5}},
                        "cases": [{"id": "a"}, {"id": "b", "num_tokens": 3, "positions": {"pattern": "random"},
                                                "table": {"width": "full"}}])");
  EXPECT_EQ(cases[0].tokens(), 2);
  EXPECT_EQ(cases[1].tokens(), 3);
  EXPECT_FALSE(cases[1].positions.values.has_value());
  EXPECT_EQ(cases[1].positions.dtype, IndexDType::int32);
  EXPECT_EQ(cases[1].table.base, 5e5);
}

TEST(CaseFile, RequestsGiveTheTokens) {
  auto cases = parse(
      R"("cases": [{"id": "a", "positions": {"requests": [{"start": 9, "length": 3}, {"length": 2}]}}])");
  EXPECT_EQ(cases[0].tokens(), 5);
  EXPECT_EQ(cases[0].kv_rows(), 5);
  EXPECT_EQ(cases[0].slots_length(), 5);
}

TEST(CaseFileErrors, PointerEndsInTheOffendingKey) {
  EXPECT_EQ(error_of(R"("cases": [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d", "block_size": "16"}])"),
            R"(/cases/3/block_size: must be a positive integer, got "16")");
  EXPECT_EQ(error_of(R"("defaults": {"block_size": 0}, "cases": [{"id": "a"}])"),
            "/defaults/block_size: must be a positive integer, got 0");
  EXPECT_EQ(error_of(R"("sweep": {"block_size": [1, 16.5]}, "cases": [{"id": "a"}])"),
            "/sweep/block_size: must be a positive integer, got 16.5");
  EXPECT_EQ(error_of(R"("cases": [{"id": "a", "sweep": {"table.width": ["half", "wide"]}}])").substr(0, 33),
            "/cases/0/sweep/table.width: must ");
  EXPECT_EQ(case_error(R"("positions": {"requests": [{"length": 1}, {"length": 2.5}]})"),
            "/cases/0/positions/requests/1/length: must be a positive integer, got 2.5");
  EXPECT_EQ(case_error(R"("dtype": "fp64")"),
            R"(/cases/0/dtype: must be one of "fp16", "bf16", "fp32", got "fp64")");
  EXPECT_EQ(case_error(R"("in_place": true)").substr(0, 31), "/cases/0/in_place: unknown key,");
  EXPECT_EQ(case_error(R"("inputs": {"inplace": true})").substr(0, 37),
            "/cases/0/inputs/inplace: unknown key,");
}

TEST(CaseFileErrors, TheFileItself) {
  EXPECT_EQ(error_of(R"("cases": [])"), "/cases: must be a list of at least one case, got []");
  EXPECT_EQ(error_of(R"("sweep": {"x": []}, "cases": [{"id": "a"}])"),
            "/sweep/x: must be a list of at least one value, got []");
  EXPECT_EQ(error_of(R"("cases": [{"id": "a"}, {"id": "a"}])"),
            R"(/cases/1/id: must be unique, but "a" is also in /cases/0)");
  EXPECT_EQ(error_of(R"("cases": [{"num_tokens": 3}])"),
            "/cases/0/id: must be a non-empty string, is missing");
  EXPECT_EQ(error_of(R"("cases": [{"id": "a", "seed": 1, "seed": 2}])"), "/cases/0/seed: key is given twice");
  EXPECT_EQ(error_of(R"("cases": [{"id": "a"}], "case": 1)").substr(0, 18), "/case: unknown key");
  EXPECT_THROW(parse_case_file(R"({"schema_version": 1, "cases": [{"id")", ""), FileError);
  EXPECT_THROW(parse_case_file(R"({"schema_version": 2, "cases": [{"id": "a"}]})", ""), FileError);
  EXPECT_THROW(parse_case_file("", ""), FileError);
  EXPECT_THROW(parse_case_file("[]", ""), FileError);
  EXPECT_THROW(read_case_file("/nowhere/cases.json"), FileError);
}

TEST(CaseFileErrors, KeysThatDoNotGoTogether) {
  EXPECT_EQ(case_error(R"("num_tokens": 4, "positions": {"requests": [{"length": 3}]})"),
            "/cases/0/positions/requests: must have lengths that sum to num_tokens = 4, got 3");
  EXPECT_EQ(case_error(R"("num_slots": 4, "slots": {"values": [1, 2]})"),
            "/cases/0/slots/values: must have num_slots = 4 values, got 2");
  EXPECT_EQ(case_error(R"("slots": {"pattern": "random", "values": [1]})").substr(0, 38),
            "/cases/0/slots/values: belongs to patt");
  EXPECT_EQ(case_error(R"("slots": {"pattern": "explicit"})").substr(0, 32),
            "/cases/0/slots/values: is missin");
  EXPECT_EQ(case_error(R"("slots": {"padding": [5]})"),
            "/cases/0/slots/padding: must name rows below num_slots = 5, got 5");
  EXPECT_EQ(case_error(R"("num_tokens": 64, "num_blocks": 3, "slots": {"pattern": "random"})"),
            "/cases/0/num_blocks: must be at least 4 for these slots, got 3");
  EXPECT_EQ(case_error(R"("slots": {"values": [2147483648], "dtype": "int32"}, "num_blocks": 1)"),
            "/cases/0/slots: must fit int32, got 2147483648");
  EXPECT_EQ(case_error(R"("misuse": {"tensor": "k", "fault": "rank"})"),
            "/cases/0/misuse: is an error, and the case expects none");
  EXPECT_EQ(case_error(R"("misuse": {"tensor": "k", "fault": "shared"})"),
            "/cases/0/misuse/with: must be the tensor that the memory is shared with, is missing");
  EXPECT_EQ(case_error(R"("misuse": {"fault": "rank"})"),
            "/cases/0/misuse/tensor: must be the name of an argument, is missing");
  EXPECT_EQ(case_error(R"("q_out_dtype": "fp8_e5m2", "outputs": {"q_out": false})"),
            "/cases/0/q_out_dtype: is that of a q_out that is given, and outputs/q_out says that none is");
  EXPECT_EQ(case_error(R"("positions": {"axes": 3, "values": [[1], [2], [3]]})"),
            "/cases/0/positions/axes: is what the lists in values say");
  const std::string lists =
      "/cases/0/positions/values: must be a list of integers, or at least two lists of them, "
      "all of one length, got ";
  EXPECT_EQ(case_error(R"("positions": {"values": [[1, 2], [3]]})"), lists + "[[1,2],[3]]");
  EXPECT_EQ(case_error(R"("positions": {"values": [[1, 2]]})"), lists + "[[1,2]]");
  EXPECT_EQ(case_error(R"("positions": {"values": [[1], 2]})").substr(0, 40),
            "/cases/0/positions/values/1: must be a l");
  EXPECT_EQ(case_error(R"("positions": {"axes": 0})").substr(0, 32), "/cases/0/positions/axes: must be");
  EXPECT_EQ(case_error(R"("mrope": {"section": [-1, 0, 0]})").substr(0, 32),
            "/cases/0/mrope/section: must be ");
  EXPECT_EQ(case_error(R"("table": {"scaling": {"rope_type": "yarn", "factor": 0}})"),
            "/cases/0/table/scaling/factor: must be a number of at least 1, got 0");
  EXPECT_EQ(case_error(R"("expect": {"error": "("})").substr(0, 53),
            "/cases/0/expect/error: must be a regular expression (");
}

std::string scaling_error(const std::string& keys) {
  return case_error(R"("rotary_dim": 4, "table": {"scaling": {)" + keys + "}}");
}

TEST(CaseFileErrors, Scalings) {
  const std::string at = "/cases/0/table/scaling/";
  const std::string missing =
      at + "original_max_position_embeddings: is missing, and this rope_type needs it";
  for (const char* type : {"dynamic", "llama3", "yarn", "longrope"})
    EXPECT_EQ(scaling_error(R"("rope_type": ")" + std::string(type) + "\""), missing) << type;
  EXPECT_EQ(scaling_error(R"("type": "yarn")"), missing);
  EXPECT_EQ(scaling_error(R"("type": "proportional")"), "no error");
  EXPECT_EQ(scaling_error(R"("type": "su")").substr(0, 53), at + "type: must be one of \"default\"");
  EXPECT_EQ(scaling_error(
                R"("rope_type": "llama3", "original_max_position_embeddings": 8, "high_freq_factor": 0.5)"),
            at + "high_freq_factor: must not be below low_freq_factor");
  const std::string original = R"("type": "longrope", "original_max_position_embeddings": )";
  EXPECT_EQ(scaling_error(original + "8"),
            at + "factor: is missing, and longrope needs it or max_position_embeddings");
  EXPECT_EQ(scaling_error(original + R"(1, "factor": 2)"),
            at + "original_max_position_embeddings: must be above 1 for longrope");
  EXPECT_EQ(scaling_error(original + R"(8, "factor": 2, "long_factor": [1, 2])"),
            at + "short_factor: must have rotary_dim / 2 = 2 numbers, got 0");
  EXPECT_EQ(scaling_error(original + R"(8, "factor": 2, "short_factor": [1, 2], "long_factor": [1, 2, 3])"),
            at + "long_factor: must have rotary_dim / 2 = 2 numbers, got 3");
  EXPECT_EQ(scaling_error(original + R"(8, "factor": 2, "short_factor": [1, 2], "long_factor": [1, 2])"),
            "no error");
  EXPECT_EQ(scaling_error(R"("short_factor": [1, 0])"),
            at + "short_factor: must be a list of positive numbers, got [1,0]");
  EXPECT_EQ(scaling_error(R"("partial_rotary_factor": 1.5)"),
            at + "partial_rotary_factor: must be a number above 0 and of at most 1, got 1.5");
}

// What only the operation refuses is its own to refuse.
TEST(CaseFile, CallsThatTheOperationRefusesAreCases) {
  EXPECT_NO_THROW(
      parse(R"("cases": [{"id": "a", "q_heads": 7, "kv_heads": 2, "head_dim": 65, "table": {"width": 3}}])"));
  EXPECT_NO_THROW(
      parse(R"("cases": [{"id": "a", "num_slots": 9, "slots": {"start": 500}, "num_blocks": 1}])"));
}

}  // namespace
}  // namespace kvrope::regress
