#include "runner/case_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "runner/check_case.h"
#include "runner/object_reader.h"
#include "runner/parse_case.h"
#include "runner/row_plan.h"

namespace kvrope::regress {
namespace {

constexpr size_t kMostCases = 1'000'000;
constexpr int64_t kMostRowsPlannedAhead = 1 << 18;

// One list of a sweep: its key, its values and where in the file it stands.
struct SweptKey {
  std::string key;
  Json values;
  std::string pointer;
};

// The object that sets the swept key, which may be that of a member, to one value.
Json assignment(const std::string& key, const Json& value) {
  size_t dot = key.rfind('.');
  if (dot == std::string::npos) return Json{{key, value}};
  return assignment(key.substr(0, dot), Json{{key.substr(dot + 1), value}});
}

// Errors are told where the value stands, in the sweep.
void apply_swept_value(CaseSpec& spec, const SweptKey& swept, const Json& value) {
  std::string key_path = "/" + swept.key;
  std::replace(key_path.begin(), key_path.end(), '.', '/');
  try {
    apply_keys(spec, assignment(swept.key, value), "");
  } catch (const FileError& error) {
    bool is_inside = error.pointer.starts_with(key_path);
    throw FileError(swept.pointer + (is_inside ? error.pointer.substr(key_path.size()) : ""), error.message);
  }
}

std::vector<SweptKey> read_sweep(const Json* sweep, const std::string& pointer) {
  std::vector<SweptKey> keys;
  if (!sweep) return keys;
  if (!sweep->is_object()) throw FileError(pointer, "must be an object, got " + shown(*sweep));
  for (const auto& item : sweep->items()) {
    SweptKey swept{item.key(), item.value(), pointer + "/" + pointer_part(item.key())};
    if (!swept.values.is_array() || swept.values.empty()) {
      throw FileError(swept.pointer, "must be a list of at least one value, got " + shown(swept.values));
    }
    for (const Json& value : swept.values) {
      CaseSpec scratch;
      apply_swept_value(scratch, swept, value);
    }
    keys.push_back(swept);
  }
  return keys;
}

std::vector<SweptKey> override_keys(std::vector<SweptKey> keys, const std::vector<SweptKey>& overriding) {
  for (const SweptKey& swept : overriding) {
    auto same =
        std::find_if(keys.begin(), keys.end(), [&](const SweptKey& key) { return key.key == swept.key; });
    if (same == keys.end()) {
      keys.push_back(swept);
    } else {
      *same = swept;
    }
  }
  return keys;
}

std::string name_part(const SweptKey& swept, const Json& value) {
  return "/" + swept.key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
}

void expand(const CaseSpec& base, const std::vector<SweptKey>& sweep, std::vector<CaseSpec>& cases) {
  std::vector<size_t> choice(sweep.size(), 0);
  for (;;) {
    CaseSpec spec = base;
    for (size_t i = 0; i < sweep.size(); ++i) {
      const Json& value = sweep[i].values[choice[i]];
      apply_swept_value(spec, sweep[i], value);
      spec.name += name_part(sweep[i], value);
    }
    check_keys_together(spec);
    // Throws where the caches are too small for the slots. A case of more rows is told so when it runs.
    if (std::max(spec.tokens(), spec.slots_length()) <= kMostRowsPlannedAhead) plan_rows(spec);
    cases.push_back(spec);
    if (cases.size() > kMostCases) {
      throw FileError("/cases", "expand to more than " + std::to_string(kMostCases) + " cases");
    }
    size_t last = sweep.size();
    while (last > 0 && ++choice[last - 1] == sweep[last - 1].values.size()) choice[--last] = 0;
    if (last == 0) return;
  }
}

CaseSpec read_case(const Json& json, const CaseSpec& defaults, const std::string& pointer) {
  CaseSpec spec = defaults;
  spec.pointer = pointer;
  apply_keys(spec, json, pointer, true);
  if (spec.id.empty()) throw FileError(pointer + "/id", "must be a non-empty string, is missing");
  spec.name = spec.id;
  return spec;
}

}  // namespace

std::vector<CaseSpec> parse_case_file(const std::string& text, const std::string& path) {
  Json document = parse_json(text);
  ObjectReader reader(document, "", {"schema_version", "defaults", "sweep", "cases"});
  int64_t version = 0;
  if (!reader.find("schema_version")) reader.reject("schema_version", "1");
  reader.integer("schema_version", 1, kAnyInt64, version);
  if (version != 1) reader.reject("schema_version", "1");

  CaseSpec defaults;
  defaults.file = path;
  if (const Json* keys = reader.find("defaults")) apply_keys(defaults, *keys, "/defaults");
  std::vector<SweptKey> file_sweep = read_sweep(reader.find("sweep"), "/sweep");

  const Json* list = reader.find("cases");
  if (!list || !list->is_array() || list->empty()) reader.reject("cases", "a list of at least one case");
  std::vector<CaseSpec> cases;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& json = (*list)[i];
    std::string pointer = "/cases/" + std::to_string(i);
    CaseSpec spec = read_case(json, defaults, pointer);
    auto sweep = json.find("sweep");
    auto case_sweep = read_sweep(sweep == json.end() ? nullptr : &*sweep, pointer + "/sweep");
    expand(spec, override_keys(file_sweep, case_sweep), cases);
  }
  check_unique_names(cases);
  return cases;
}

std::vector<CaseSpec> read_case_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) throw FileError("", "cannot be read");
  std::string text(std::istreambuf_iterator<char>(file), {});
  return parse_case_file(text, path);
}

void check_unique_names(const std::vector<CaseSpec>& cases) {
  std::map<std::string, const CaseSpec*> seen;
  for (const CaseSpec& spec : cases) {
    auto [earlier, is_new] = seen.emplace(spec.name, &spec);
    if (is_new) continue;
    std::string where = earlier->second->file == spec.file ? earlier->second->pointer : earlier->second->file;
    throw FileError(spec.pointer + "/id", "must be unique, but \"" + spec.name + "\" is also in " + where);
  }
}

}  // namespace kvrope::regress
