// What the runner writes: terminal text, shell words, JUnit, arrays and dumps.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "runner/case_file.h"
#include "runner/console.h"
#include "runner/dump_case.h"
#include "runner/junit_report.h"
#include "runner/npy_file.h"
#include "runner/printable.h"
#include "runner/shell_quote.h"
#include "runner/tag_expression.h"

namespace kvrope::regress {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("kvrope_" + std::to_string(getpid()))) {
    fs::create_directory(path_);
  }
  // Not remove_all: torch's libraries export one of their own, which may be linked in its stead and crashes.
  ~Folder() {
    std::vector<fs::path> inside;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) inside.push_back(entry.path());
    for (size_t i = inside.size(); i-- > 0;) fs::remove(inside[i]);
    fs::remove(path_);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Printable, ControlCharactersAndBytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(printable("plain, Größe 4×4 日本 🙂"), "plain, Größe 4×4 日本 🙂");
  EXPECT_EQ(printable("a\x1b[31mb\r\n\x7f"), "a\\x1b[31mb\\x0d\\x0a\\x7f");
  EXPECT_EQ(printable("\xc2\x9b[2J"), "\\xc2\\x9b[2J") << "a control sequence in one character";
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "a"),
            "\\xe2\\x80\\xae"
            "a")
      << "turns the direction of the line";
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Printable, LinesAreCutBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc");
  EXPECT_EQ(shortened("aß", 2), "a");
  EXPECT_EQ(shortened("日本", 5), "日");
}

TEST(ShellQuote, WordsComeBackAsTheyWere) {
  EXPECT_EQ(shell_quoted("tests/shapes/quick.json"), "tests/shapes/quick.json");
  EXPECT_EQ(shell_quoted("it's [1]"), "'it'\\''s [1]'");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("a\x1b'\\\n"), "$'a\\033\\'\\\\\\012'");
}

TEST(TagExpression, AndOrNotParenthesesComma) {
  std::vector<std::string> tags = {"decode", "fp8"};
  for (const char* text : {"", "decode", "decode and fp8", "x or fp8", "x,fp8", "not x", "not (x or y)",
                           "decode and not x", "x and y or fp8", "not not fp8", "( decode )"}) {
    EXPECT_TRUE(TagExpression(text).matches(tags)) << text;
  }
  for (const char* text :
       {"x", "decode and x", "not fp8", "x,y", "not (x or fp8)", "decode and (x or y)", "fp8 and x or y"}) {
    EXPECT_FALSE(TagExpression(text).matches(tags)) << text;
  }
}

TEST(TagExpression, MistakesAreNamed) {
  auto error_of = [](const std::string& text) -> std::string {
    try {
      TagExpression expression(text);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of("a b"), "expected an operator before \"b\" in \"a b\"");
  EXPECT_EQ(error_of("a and"), "expected a tag in \"a and\"");
  EXPECT_EQ(error_of("(a"), "expected \")\" in \"(a\"");
  EXPECT_EQ(error_of("a,,b"), "expected a tag before \",\" in \"a,,b\"");
  EXPECT_EQ(error_of(" "), "expected a tag in \" \"");
}

TEST(Counts, AddUp) {
  Counts counts;
  counts.of = {{Disposition::passed, 5},
               {Disposition::rejected_as_expected, 4},
               {Disposition::failed, 3},
               {Disposition::error, 2},
               {Disposition::skipped, 1}};
  EXPECT_EQ(counts.passed(), 9);
  EXPECT_EQ(counts.failed(), 5);
  EXPECT_EQ(counts.skipped(), 1);
  EXPECT_EQ(counts.all(), 15);
  EXPECT_EQ(counts.as_json().at("rejected-as-expected"), 4);
}

TEST(JunitReport, TextIsEscaped) {
  CaseSpec spec;
  spec.name = "a<b>&\"c\"\x01";
  spec.file = "f.json";
  CaseResult result;
  result.disposition = Disposition::failed;
  result.message = "1 < 2 && \x1b";
  result.findings.add({"q_out", "[row 0]", std::nullopt, "<1>", "2"});
  JunitReport report;
  report.add(spec, result);
  report.add(spec, {Disposition::skipped, "no memory", {}, 0});
  report.add(spec, {Disposition::error, "raised", {}, 0});
  report.add(spec, {Disposition::rejected_as_expected, "k: ", {}, 0});
  std::string text = report.text();
  EXPECT_NE(text.find("name=\"a&lt;b&gt;&amp;&quot;c&quot;\\x01\""), std::string::npos) << text;
  EXPECT_NE(
      text.find(
          "<failure message=\"1 &lt; 2 &amp;&amp; \\x1b\">q_out [row 0]: want &lt;1&gt;, got 2\n</failure>"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\""), std::string::npos) << text;
}

TEST(NpyFile, HeaderIsPaddedAndValuesFollow) {
  Folder folder;
  write_npy(folder.path() / "a.npy", {2, 1}, std::vector<float>{1.0f, 2.0f});
  std::string text = read(folder.path() / "a.npy");
  ASSERT_EQ(text.size(), 128u + 8u);
  EXPECT_EQ(text.substr(0, 8), std::string("\x93NUMPY\x01\0", 8));
  EXPECT_NE(text.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2,1,), }"), std::string::npos);
  EXPECT_EQ(text[127], '\n');
  EXPECT_EQ(text.substr(128), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  EXPECT_THROW(write_npy(folder.path() / "nowhere" / "a.npy", {0}, std::vector<float>()), std::runtime_error);
}

CaseSpec one_case(const std::string& keys) {
  return parse_case_file(R"({"schema_version": 1, "cases": [{"id": "a/b c", )" + keys + "}]}", "f.json")
      .front();
}

TEST(DumpCase, AMismatchLeavesItsTensors) {
  Folder folder;
  CaseSpec spec = one_case(R"("num_tokens": 2, "slots": {"values": [3, 17]}, "outputs": {"k_out": false})");
  auto wrong = [](const FusedArguments& args) {
    FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
    args.value_cache[0][3][1][5].fill_(77);
    return outputs;
  };
  int dumps = 0;
  CaseResult result = run_case(spec, c10::kCPU, wrong, [&](const MismatchedCall& call) {
    ++dumps;
    dump_case(folder.path(), 4, spec, call, "again");
  });
  ASSERT_EQ(dumps, 1);
  EXPECT_EQ(result.message, "1 mismatches");
  fs::path made = folder.path() / "4_a_b_c";
  Json index = Json::parse(read(made / "index.json"));
  EXPECT_EQ(index.at("name"), "a/b c");
  EXPECT_EQ(index.at("repeat"), "again");
  EXPECT_EQ(index.at("mismatches"), 1);
  for (const Json& tensor : index.at("tensors")) {
    EXPECT_TRUE(fs::exists(made / tensor.at("file").get<std::string>())) << tensor.dump();
  }
  std::string got = read(made / "value_cache_got.npy");  // (2, 2, 64) of slots 3 and 17
  float value;
  std::memcpy(&value, got.data() + got.size() - 2 * 2 * 64 * 4 + (64 + 5) * 4, sizeof value);
  EXPECT_EQ(value, 77);
  EXPECT_TRUE(fs::exists(made / "memory_value_cache_after.npy"));
  EXPECT_TRUE(fs::exists(made / "k_out_got.npy")) << "the operation allocated it";
}

TEST(DumpCase, WhatGoesWrongIsSaidAndTheResultStays) {
  auto nothing = [](const FusedArguments& args) -> FusedOutputs {
    return {args.q_out->view({args.q.size(0), -1}), *args.k_out, args.key_cache, args.value_cache,
            args.zeros_out};
  };
  CaseResult result = run_case(one_case(R"("num_tokens": 1)"), c10::kCPU, nothing,
                               [](const MismatchedCall&) { throw std::runtime_error("the disk is full"); });
  EXPECT_EQ(result.disposition, Disposition::failed);
  EXPECT_NE(result.message.find("; the disk is full"), std::string::npos);
}

}  // namespace
}  // namespace kvrope::regress
