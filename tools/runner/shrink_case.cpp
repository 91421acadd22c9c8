#include "runner/shrink_case.h"

#include <vector>

namespace kvrope::regress {
namespace {

using Pointer = Json::json_pointer;

// Every key and list element below `value`, outer ones first; elements from the back, so that removing one
// leaves the places of those to come.
void collect(const Json& value, const Pointer& place, std::vector<Pointer>& found) {
  if (!place.empty()) found.push_back(place);
  if (value.is_object()) {
    for (const auto& item : value.items()) collect(item.value(), place / item.key(), found);
  } else if (value.is_array()) {
    for (size_t i = value.size(); i-- > 0;) collect(value[i], place / i, found);
  }
}

Json without(const Json& keys, const Pointer& place) {
  Json result = keys;
  Json& parent = result[place.parent_pointer()];
  if (parent.is_array()) {
    parent.erase(std::stoul(place.back()));
  } else {
    parent.erase(place.back());
  }
  return result;
}

// What is simpler than a number, the simplest first.
std::vector<Json> simpler_numbers(const Json& number) {
  if (number.is_number_float()) return number == 1.0 ? std::vector<Json>{} : std::vector<Json>{1.0};
  std::vector<Json> simpler;
  auto value = number.get<int64_t>();
  for (int64_t candidate : {int64_t{0}, int64_t{1}, int64_t{2}, value / 2, value - (value > 0 ? 1 : -1)}) {
    bool is_smaller = value > 0 ? candidate < value && candidate >= 0 : candidate > value && candidate <= 0;
    if (is_smaller) simpler.emplace_back(candidate);
  }
  return simpler;
}

// A size that positions or slots must stay below: lowering it would make a valid case invalid, and the error
// that it then rightly raises could pass for the one that is looked for. Left out, it is what the case needs.
bool is_limit(const Pointer& place) {
  std::string text = place.to_string();
  return text == "/table/rows" || text == "/num_blocks";
}

class Shrinker {
 public:
  Shrinker(const FuzzCase& failing, const std::function<bool(const Json&)>& fails_alike, int most_runs)
      : keys_(failing.keys), pinned_(failing.pinned), fails_alike_(fails_alike), runs_left_(most_runs) {}

  Json shrink() {
    while (runs_left_ > 0 && (drop_keys() | lower_numbers())) {
    }
    return keys_;
  }

 private:
  // The key itself, what lies inside it, and for removal what it lies inside.
  bool may_change(const Pointer& place) const {
    std::string text = place.to_string();
    if (text == "/id") return false;
    for (const std::string& pinned : pinned_) {
      if (pinned == text || pinned.starts_with(text + "/") || text.starts_with(pinned + "/")) return false;
    }
    return true;
  }

  bool take(const Json& candidate) {
    if (runs_left_ <= 0) return false;
    --runs_left_;
    if (!fails_alike_(candidate)) return false;
    keys_ = candidate;
    return true;
  }

  bool drop_keys() {
    bool has_changed = false;
    std::vector<Pointer> places;
    collect(keys_, Pointer(), places);
    for (const Pointer& place : places) {
      if (keys_.contains(place) && may_change(place)) has_changed |= take(without(keys_, place));
    }
    return has_changed;
  }

  bool lower_numbers() {
    bool has_changed = false;
    std::vector<Pointer> places;
    collect(keys_, Pointer(), places);
    for (const Pointer& place : places) {
      if (!keys_.at(place).is_number() || !may_change(place) || is_limit(place)) continue;
      for (const Json& number : simpler_numbers(keys_.at(place))) {
        Json candidate = keys_;
        candidate[place] = number;
        if (!take(candidate)) continue;
        has_changed = true;
        break;
      }
    }
    return has_changed;
  }

  Json keys_;
  const std::set<std::string>& pinned_;
  const std::function<bool(const Json&)>& fails_alike_;
  int runs_left_;
};

}  // namespace

Json shrink_case(const FuzzCase& failing, const std::function<bool(const Json& keys)>& fails_alike,
                 int most_runs) {
  return Shrinker(failing, fails_alike, most_runs).shrink();
}

}  // namespace kvrope::regress
