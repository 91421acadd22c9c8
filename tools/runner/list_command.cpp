#include "runner/list_command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "runner/call_bytes.h"
#include "runner/call_flops.h"
#include "runner/case_selection.h"
#include "runner/json_document.h"
#include "runner/output_file.h"
#include "runner/printable.h"
#include "runner/selection_options.h"

namespace kvrope::regress {
namespace {

struct ListOptions {
  Selection selection;
  std::string json_path;
};

struct Line {
  const CaseSpec* spec;
  std::optional<int64_t> bytes;  // not known of what is too large to be planned here, or cannot be
  int64_t flops;
};

std::optional<int64_t> bytes_of_call(const CaseSpec& spec) {
  constexpr int64_t kMostRows = 1 << 24;
  if (std::max(spec.kv_rows(), spec.slots_length()) > kMostRows) return std::nullopt;
  try {
    return call_bytes(spec, plan_rows(spec)).all();
  } catch (const FileError&) {
    return std::nullopt;
  }
}

std::vector<Line> measure(const std::vector<CaseSpec>& cases) {
  std::vector<Line> lines;
  for (const CaseSpec& spec : cases) lines.push_back({&spec, bytes_of_call(spec), call_flops(spec)});
  return lines;
}

void print(const std::vector<Line>& lines) {
  size_t width = 4;
  for (const Line& line : lines) width = std::max(width, printable(line.spec->name).size());
  std::printf("%-*s  %14s  %14s\n", static_cast<int>(width), "name", "bytes", "FLOPs");
  for (const Line& line : lines) {
    std::string bytes = line.bytes ? std::to_string(*line.bytes) : "?";
    std::printf("%-*s  %14s  %14lld\n", static_cast<int>(width), printable(line.spec->name).c_str(),
                bytes.c_str(), static_cast<long long>(line.flops));
  }
}

std::string json_text(const std::vector<Line>& lines) {
  Json cases = Json::array();
  for (const Line& line : lines) {
    cases.push_back({{"name", line.spec->name},
                     {"file", line.spec->file},
                     {"tags", line.spec->tags},
                     {"bytes", line.bytes ? Json(*line.bytes) : Json(nullptr)},
                     {"flops", line.flops}});
  }
  Json document;
  document["cases"] = std::move(cases);
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int list_command(const ListOptions& options) {
  std::vector<CaseSpec> cases = select_cases(options.selection);
  require_no_input(options.json_path, options.selection.files);
  OutputFile json(options.json_path);
  std::vector<Line> lines = measure(cases);
  if (options.json_path != "-") print(lines);
  if (!options.json_path.empty()) json.write(json_text(lines));
  return 0;
}

}  // namespace

void add_list_command(CLI::App& app, const std::vector<std::string>&, std::function<int()>& chosen) {
  CLI::App& command = *app.add_subcommand("list",
                                          "Name every case, with the bytes it must move (inputs, outputs, "
                                          "cached rows, table rows and indices, each "
                                          "once) and its floating-point operations");
  auto options = std::make_shared<ListOptions>();
  add_cases(command, options->selection);
  add_json(command, options->json_path);
  command.callback([=, &chosen] { chosen = [=] { return list_command(*options); }; });
}

}  // namespace kvrope::regress
