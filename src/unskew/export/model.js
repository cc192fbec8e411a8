
"use strict";
/** The model of an exported page: scores and best items of a history, and what would leave.
 *  `model` describes it, `packed` are its tables as compressed base64 text. */
async function openModel(model, packed) {
  const n = model.labels.length;
  const T = {}; // tables by name, flat
  const shape = {};

  // ---- Tables ----

  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  /** The number that 16 bits of a float16 stand for. */
  function half(bits) {
    const sign = bits >> 15 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    return sign * (exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14);
  }

  async function readTables() {
    const buffer = await unpack(packed);
    const halves = Float32Array.from({ length: 65536 }, (_, bits) => half(bits));
    const kinds = { f4: Float32Array, f2: Uint8Array, i1: Int8Array, u2: Uint16Array, i4: Int32Array };
    for (const [name, type, at, size] of model.arrays) {
      const length = size.reduce((a, b) => a * b, 1);
      const stored = new kinds[type](buffer, at, type === "f2" ? 2 * length : length);
      T[name] = type !== "f2" ? stored // of a float16, all low bytes stand before all high ones
        : Float32Array.from({ length }, (_, i) => halves[stored[i] | (stored[length + i] << 8)]);
      shape[name] = size;
    }
    for (const [name, type, , [, width]] of model.arrays) {
      if (type !== "i1") continue;
      const rows = T[name + ".rows"];
      const columns = T[name + ".columns"];
      const whole = T[name];
      T[name] = Float32Array.from(whole, (code, at) =>
        Math.fround(Math.fround(code * rows[Math.floor(at / width)]) * columns[at % width]));
    }
  }

  // ---- Scores of all items for a history (distinct item numbers, oldest first) ----

  /** Inner product of each row of a table with a vector. */
  function product(table, vector) {
    const width = vector.length;
    return Float32Array.from({ length: table.length / width }, (_, row) => {
      let sum = 0;
      for (let k = 0, at = row * width; k < width; k++) sum += table[at + k] * vector[k];
      return sum;
    });
  }

  /** A vector times a matrix with a row per entry of the vector, plus an optional shift. */
  function times(vector, matrix, shift) {
    const width = matrix.length / vector.length;
    const sums = new Float64Array(width);
    vector.forEach((value, i) => {
      for (let k = 0, at = i * width; k < width; k++) sums[k] += value * matrix[at + k];
    });
    return shift ? sums.map((value, k) => value + shift[k]) : sums;
  }

  /** Features of FedRefit before the first item and after each: decayed sums, and a 1. */
  function features(history) {
    const d = shape.U[1];
    const sums = new Float64Array(T.decays.length * d);
    const counts = new Float64Array(T.decays.length);
    const all = [[...sums, 1]];
    for (const item of history) {
      T.decays.forEach((decay, g) => {
        counts[g] = counts[g] * decay + 1;
        for (let k = 0; k < d; k++) {
          sums[g * d + k] = sums[g * d + k] * decay + T.U[item * d + k] * T.damping[item];
        }
      });
      all.push([...sums.map((sum, at) => sum / Math.sqrt(counts[Math.floor(at / d)])), 1]);
    }
    return all;
  }

  /** Layer normalisation with the gain and shift in rows `at` and `at + 1` of the norms. */
  function normalise(x, at) {
    const d = x.length;
    const mean = x.reduce((a, b) => a + b) / d;
    const square = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / d;
    const inverse = 1 / Math.sqrt(square + model.epsilon);
    return x.map((v, k) => (v - mean) * inverse * T.norms[at * d + k] + T.norms[(at + 1) * d + k]);
  }

  /** FedNext's vector after the last item of a history; zero without an item. */
  function userVector(history) {
    const d = shape.R[1] - 1;
    if (!history.length) return new Float64Array(d);
    const width = d / model.groups;
    const sums = new Float64Array(d);
    const counts = new Float64Array(model.groups);
    let x0, y1;
    for (const item of history) {
      x0 = Float64Array.from(T.R.subarray(item * (d + 1), item * (d + 1) + d));
      y1 = normalise(x0, 0);
      const v = times(y1, T.Wv);
      T.factors.forEach((factor, g) => {
        counts[g] = counts[g] * factor + 1;
        for (let k = g * width; k < (g + 1) * width; k++) sums[k] = sums[k] * factor + v[k];
      });
    }
    const gate = times(y1, T.Wg);
    const q = sums.map((s, k) => s / counts[Math.floor(k / width)] / (1 + Math.exp(-gate[k])));
    const x1 = times(q, T.Wo, x0);
    const hidden = times(normalise(x1, 2), T.W1, T.b1).map((value) => Math.max(value, 0));
    const x2 = times(hidden, T.W2, T.b2).map((value, k) => value + x1[k]);
    return normalise(x2, 4);
  }

  const kinds = {
    SameForAll: () => Float32Array.from(T.scores),
    Neighbours(history) {
      const own = new Float64Array(n);
      history.forEach((item, t) => {
        const age = history.length - 1 - t;
        model.rates.forEach((rate, r) => { own[item] += model.shares[r] * rate ** age; });
      });
      const k = shape.neighbours[1];
      return Float32Array.from({ length: n }, (_, item) => {
        let sum = 0;
        for (let at = item * k; at < (item + 1) * k; at++) sum += T.similarity[at] * own[T.neighbours[at]];
        return sum;
      });
    },
    DecayedFactors: (history) => product(T.V, features(history).at(-1)),
    HistoryNetwork(history) {
      const refit = kinds.DecayedFactors(history);
      const z = product(T.R, shape.R[1] > 1 ? [...userVector(history), 1] : [1]);
      return z.map((value, item) => {
        const y = refit[item] / model.scale;
        const softplus = Math.max(y, 0) + Math.log1p(Math.exp(-Math.abs(y)));
        return value + model.tau * Math.log(softplus + 1e-4);
      });
    },
  };
  const scores = (history) => kinds[model.kind]([...new Set(history)]);

  /** The `k` best items outside the history; of equal scores the lower number first. */
  function best(history, k) {
    const all = scores(history);
    const seen = new Set(history);
    const left = [...all.keys()].filter((item) => !seen.has(item));
    left.sort((a, b) => all[b] - all[a] || a - b);
    return left.slice(0, k).map((item) => ({ item, score: all[item] }));
  }

  // ---- What a device would send for a history ----

  /** For each item of a list, the sum of the features before it, decayed by their distance. */
  function featuresBefore(list) {
    const f = features(list);
    let z = new Array(f[0].length).fill(0);
    return list.map((_, t) => {
      if (t > 0) z = z.map((value, k) => value * model.horizon + f[t][k]);
      return z;
    });
  }

  /** Rows and size of the dense block of FedRefit's upload: that of a fit of V, or of its first
   *  rounds. A method's Python sends the same; tests compare. */
  function upload(history) {
    const f = features(history);
    const share = 1 / Math.sqrt(Math.max(history.length, 1));
    if (model.horizon === null) {
      return { rows: history.map(() => f.at(-1).map((v, k, all) => (k < all.length - 1 ? v * share : 1))), dense: 0 };
    }
    const width = f[0].length;
    const forward = featuresBefore(history);
    const backward = featuresBefore([...history].reverse()).reverse();
    const rows = forward.map((row, t) => row.map((value, k) => share * (value + model.backward * backward[t][k])));
    return { rows, dense: (width * (width + 1)) / 2 };
  }

  /** The `size` items most likely yours to a server that sees the sum over some devices: those
   *  with the largest expected number of owners, yourself included. */
  function guess(history, devices) {
    const expected = model.users.map((users) => ((devices - 1) * users) / model.nUsers);
    for (const item of history) expected[item] += 1;
    const order = [...expected.keys()].sort((a, b) => expected[b] - expected[a] || a - b);
    return order.slice(0, history.length);
  }

  await readTables();
  return { scores, best, upload, guess };
}
