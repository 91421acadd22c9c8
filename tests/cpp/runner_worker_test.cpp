// Cases run for another process: a worker may crash, hang, fail to start, and each is a result.
#include "runner/case_worker.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "runner/fuzz_run.h"
#include "runner/result_json.h"

namespace kvrope::regress {
namespace {

CaseWorker shell(const std::string& script, double most_seconds = 60) {
  return CaseWorker({"/bin/sh", "-c", script}, most_seconds);
}

Json some_case() {
  return {{"id", "a"}};
}

TEST(CaseWorker, ACrashIsAnErrorAndTheNextCaseGetsANewProcess) {
  CaseWorker worker = shell("kill -SEGV $$");
  for (int i = 0; i < 2; ++i) {
    CaseResult result = worker.run(some_case());
    EXPECT_EQ(result.disposition, Disposition::error);
    EXPECT_EQ(result.message, "the process that ran the case was ended by signal 11 (Segmentation fault)");
  }
}

TEST(CaseWorker, AnExitIsAnError) {
  EXPECT_EQ(shell("exit 7").run(some_case()).message,
            "the process that ran the case was ended by exit code 7");
}

TEST(CaseWorker, AnEndlessCaseIsAnError) {
  CaseResult result = shell("exec sleep 100", 0.2).run(some_case());
  EXPECT_EQ(result.disposition, Disposition::error);
  EXPECT_EQ(result.message, "the call has not returned within 0 s");
}

TEST(CaseWorker, AProgramThatIsNotThere) {
  EXPECT_THROW(CaseWorker({"/nowhere/program"}, 1).run(some_case()), std::system_error);
}

TEST(CaseWorker, ServesCases) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread server([&] { serve_cases(ends[1], c10::kCPU); });
  auto ask = [&](const std::string& text) {
    auto size = static_cast<uint32_t>(text.size());
    EXPECT_EQ(write(ends[0], &size, sizeof size), static_cast<ssize_t>(sizeof size));
    EXPECT_EQ(write(ends[0], text.data(), size), static_cast<ssize_t>(size));
    EXPECT_EQ(read(ends[0], &size, sizeof size), static_cast<ssize_t>(sizeof size));
    std::string answer(size, '\0');
    EXPECT_EQ(recv(ends[0], answer.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return result_from_json(Json::parse(answer));
  };
  EXPECT_EQ(ask(file_with_case(some_case())).disposition, Disposition::passed);
  CaseResult bad = ask(file_with_case({{"id", "a"}, {"num_tokens", -1}}));
  EXPECT_EQ(bad.disposition, Disposition::error);
  EXPECT_EQ(bad.message, "/cases/0/num_tokens: must be a non-negative integer, got -1");
  EXPECT_EQ(ask("{").disposition, Disposition::error);
  close(ends[0]);
  server.join();
  close(ends[1]);
}

TEST(ResultJson, ThereAndBack) {
  CaseResult result;
  result.disposition = Disposition::failed;
  result.message = "2 mismatches";
  result.seconds = 0.25;
  result.findings.elements = 12;
  result.findings.add({"key_cache", "[head 1]", 7, "1", "2"});
  result.findings.add({"q_out", "", std::nullopt, "3", "4"});
  result.findings.note_error("q_out", 1.5);
  EXPECT_EQ(to_json(result_from_json(to_json(result))), to_json(result));
  EXPECT_EQ(result_from_json(to_json(result)).findings.kept[0].slot, 7);
}

TEST(FuzzRun, WorkersThatCrashFailEachCaseAndEndTheRunInTime) {
  FuzzPlan plan;
  plan.cases = 100;
  plan.most_failures = 3;
  plan.workers = 2;
  plan.worker = {"/bin/sh", "-c", "kill -ABRT $$"};
  std::vector<std::string> told;
  FuzzRun run(plan, {[](int64_t, int64_t) {},
                     [&](const Json& drawn, const Json&, const CaseResult& result) {
                       told.push_back(drawn.at("id"));
                       EXPECT_NE(result.message.find("signal 6"), std::string::npos);
                     }});
  run.run();
  EXPECT_EQ(told, (std::vector<std::string>{"fuzz-0-0", "fuzz-0-1", "fuzz-0-2"}));
  EXPECT_EQ(run.counts().failed(), 3);
  EXPECT_EQ(run.counts().all(), 3);
}

}  // namespace
}  // namespace kvrope::regress
