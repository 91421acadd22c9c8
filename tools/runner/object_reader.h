// Typed, range-checked reading of the keys of one JSON object. Every complaint is a FileError whose pointer
// ends in the key; a key that is absent leaves its target as it is, which is how later layers of a case
// override earlier ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/json_document.h"

namespace kvrope::regress {

constexpr int64_t kAnyInt64 = std::numeric_limits<int64_t>::max();

class ObjectReader {
 public:
  // Throws FileError when `value` is no object or has a key that is not in `known_keys`.
  ObjectReader(const Json& value, std::string pointer, const std::vector<std::string>& known_keys);

  const Json* find(const std::string& key) const;
  std::string pointer_to(const std::string& key) const { return pointer_ + "/" + pointer_part(key); }
  [[noreturn]] void reject(const std::string& key, const std::string& expected) const;

  // Target: int64_t, double, bool, std::string or std::vector of them, or std::optional of one of these.
  template <class Target>
  void integer(const std::string& key, int64_t low, int64_t high, Target& target) const {
    if (const Json* value = find(key)) target = to_integer(key, *value, low, high);
  }
  template <class Target>
  void number(const std::string& key, double low, Target& target) const {
    if (const Json* value = find(key)) target = to_number(key, *value, low);
  }
  void boolean(const std::string& key, bool& target) const;
  void text(const std::string& key, std::string& target) const;

  template <class Target>
  void integers(const std::string& key, int64_t low, int64_t high, Target& target) const {
    if (const Json* value = find(key)) target = to_integers(key, *value, low, high);
  }
  template <class Target>
  void numbers(const std::string& key, Target& target) const {
    if (const Json* value = find(key)) target = to_numbers(key, *value);
  }
  void texts(const std::string& key, std::vector<std::string>& target) const;

  template <class Enum, class Target>
  void choice(const std::string& key, const std::vector<std::pair<std::string, Enum>>& names,
              Target& target) const {
    const Json* value = find(key);
    if (!value) return;
    std::string expected;
    for (const auto& [name, result] : names) {
      if (value->is_string() && value->get<std::string>() == name) {
        target = result;
        return;
      }
      expected += (expected.empty() ? "\"" : ", \"") + name + "\"";
    }
    reject(key, "one of " + expected);
  }

  // The object under `key`, or nothing when the key is absent.
  std::optional<ObjectReader> object(const std::string& key,
                                     const std::vector<std::string>& known_keys) const;

 private:
  int64_t to_integer(const std::string& key, const Json& value, int64_t low, int64_t high) const;
  double to_number(const std::string& key, const Json& value, double low) const;
  std::vector<int64_t> to_integers(const std::string& key, const Json& value, int64_t low,
                                   int64_t high) const;
  std::vector<double> to_numbers(const std::string& key, const Json& value) const;

  const Json* object_;
  std::string pointer_;
};

// Whether a JSON number is an integer of int64, as JSON Schema sees it: 16.0 is one, 16.5 is none.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace kvrope::regress
