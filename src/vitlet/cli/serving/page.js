"use strict";

const LARGEST_KEPT = 40; // results on the page
const AT_ONCE = 2; // images on their way
const SIDE = 320; // pixels of the longer side of a drawn map
const place = (id) => document.getElementById(id);
const waiting = [];
let limits = { upload_bytes: 0, pixels: 0 };
let under_way = 0;
let stream = null;

/** An element with text; names of classes and files never become markup. */
function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
}

/** A model's name: it may be broken after a sign that joins its parts, not in mid-word. */
function parted(text) {
  const whole = make("span", "", "parted");
  for (const piece of text.split(/(?<=[-_./+])/)) whole.append(piece, document.createElement("wbr"));
  return whole;
}

/** What is known of a run before any image: the sizes that its model has, whatever the name says. */
function describe(run) {
  const line = make("p", `${run.run}: `);
  const patch = run.patch_size ? `, patches of ${run.patch_size.join(" × ")} px` : "";
  line.append(parted(run.model), `, images of ${run.image_size.join(" × ")} px${patch}, ${run.classes.length} classes`);
  return line;
}

function say(text) {
  place("message").textContent = text;
  place("message").hidden = !text;
}

async function start() {
  const about = await (await fetch("/api/runs")).json();
  limits = about.limits;
  place("served").replaceChildren(...about.runs.map(describe));
  place("limits").textContent =
    `up to ${Math.round(limits.upload_bytes / 2 ** 20)} MB and ${Math.round(limits.pixels / 1e6)} million pixels each`;
  const notes = about.runs.flatMap((run) => run.notes);
  if (notes.length) say(notes.join(" "));
}

function take(files) {
  say("");
  for (const file of files) {
    const card = make("article", "", "result");
    const head = make("div", "", "head");
    const picture = document.createElement("img");
    picture.alt = "";
    picture.src = URL.createObjectURL(file);
    const words = make("div");
    words.append(make("h2", file.name || "picture"), make("p", "waiting …", "soft state"));
    head.append(picture, words);
    card.append(head);
    place("results").prepend(card);
    waiting.push({ file, card });
  }
  while (place("results").children.length > LARGEST_KEPT) {
    const last = place("results").lastElementChild;
    URL.revokeObjectURL(last.querySelector("img").src);
    last.remove();
  }
  next();
}

function next() {
  while (under_way < AT_ONCE && waiting.length) {
    under_way += 1;
    ask(waiting.shift()).finally(() => {
      under_way -= 1;
      next();
    });
  }
}

async function ask({ file, card }) {
  const state = card.querySelector(".state");
  const refuse = (sentence) => {
    state.className = "problem state";
    state.textContent = sentence;
  };
  if (file.size > limits.upload_bytes) return refuse("This file is larger than the server takes.");
  state.textContent = "looking …";
  try {
    const response = await fetch(`/api/predict?topk=5&maps=${place("maps").checked}`, { method: "POST", body: file });
    const found = await response.json();
    if (!response.ok) return refuse(found.error);
    state.textContent = `${found.image.width} × ${found.image.height} pixels`;
    const answers = make("div", "", "answers");
    for (const answer of found.answers) answers.append(await show(answer));
    card.append(answers);
  } catch (problem) {
    refuse("The server did not answer. Is it still running?");
  }
}

async function show(answer) {
  const part = make("section", "", "answer");
  part.append(make("h3", answer.run));
  const list = document.createElement("ol");
  for (const guess of answer.classes) {
    const row = document.createElement("li");
    const fill = make("div", "", "fill");
    fill.style.width = `${(100 * guess.probability).toFixed(1)}%`;
    row.append(fill, make("span", guess.class), make("span", `${(100 * guess.probability).toFixed(1)} %`, "number"));
    list.append(row);
  }
  const parts = make("div", "", "parts");
  parts.append(list);
  part.append(parts);
  if (answer.seen) {
    const seen = new Image();
    seen.src = answer.seen;
    await seen.decode();
    const maps = make("div", "", "maps");
    if (answer.maps.class_map) maps.append(figure(`class activation map: ${answer.classes[0].class}`, seen, (c) => heat(c, answer.maps.class_map)));
    if (answer.maps.attention) maps.append(figure("attention", seen, (c) => heat(c, answer.maps.attention)));
    const places = answer.maps.places;
    if (places) {
      maps.append(figure("token positions: ○ true, ● predicted", seen, (c) => locate(c, places)));
    }
    const column = make("div");
    column.append(maps);
    if (answer.maps.class_map || answer.maps.attention) {
      const legend = make("p", "smallest value ", "soft legend");
      legend.append(make("span", "", "ramp"), " largest value of the map. A click enlarges a map.");
      column.append(legend);
    }
    if (maps.children.length) parts.append(column);
  }
  if (answer.left_out && answer.left_out.length) {
    const left = document.createElement("details");
    const names = answer.left_out.map((sentence) => sentence.split(":")[0]);
    left.append(make("summary", `not to be had: ${names.join(", ")}`));
    for (const sentence of answer.left_out) left.append(make("p", sentence));
    part.append(left);
  }
  return part;
}

function drawn(side, caption, seen, draw) {
  const canvas = document.createElement("canvas");
  const scale = side / Math.max(seen.naturalWidth, seen.naturalHeight);
  canvas.width = Math.max(1, Math.round(scale * seen.naturalWidth));
  canvas.height = Math.max(1, Math.round(scale * seen.naturalHeight));
  canvas.getContext("2d").drawImage(seen, 0, 0, canvas.width, canvas.height);
  canvas.setAttribute("aria-label", caption);
  draw(canvas);
  return canvas;
}

/** A map under its caption; a click, or Enter, draws it again as large as the screen allows. */
function figure(caption, seen, draw) {
  const whole = document.createElement("figure");
  const canvas = drawn(SIDE, caption, seen, draw);
  const enlarge = () => {
    const large = drawn(Math.round(0.8 * Math.min(innerWidth, innerHeight)), caption, seen, draw);
    large.setAttribute("role", "img");
    place("zoom").replaceChildren(large, make("p", caption));
    place("zoom").showModal();
  };
  canvas.setAttribute("role", "button");
  canvas.tabIndex = 0;
  canvas.addEventListener("click", enlarge);
  canvas.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge();
  });
  whole.append(canvas, make("figcaption", caption));
  return whole;
}

/** From dark violet to yellow. */
const COLOURS = [[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];
function colour(share) {
  const at = Math.min(share, 0.9999) * (COLOURS.length - 1);
  const [low, high] = [COLOURS[Math.floor(at)], COLOURS[Math.floor(at) + 1]];
  return low.map((value, index) => Math.round(value + (at % 1) * (high[index] - value)));
}

/** A grid of numbers over the picture, smoothed by the browser's own scaling. */
function heat(canvas, rows) {
  const flat = rows.flat();
  const [least, most] = [Math.min(...flat), Math.max(...flat)];
  const small = document.createElement("canvas");
  [small.width, small.height] = [rows[0].length, rows.length];
  const pixels = small.getContext("2d").createImageData(small.width, small.height);
  flat.forEach((value, index) => {
    const share = most > least ? (value - least) / (most - least) : 0;
    pixels.data.set([...colour(share), 165], 4 * index);
  });
  small.getContext("2d").putImageData(pixels, 0, 0);
  const brush = canvas.getContext("2d");
  brush.imageSmoothingEnabled = true;
  brush.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** Rings where tokens are, dots where the model puts them. */
function locate(canvas, places) {
  const brush = canvas.getContext("2d");
  const at = ([row, column]) => [((column + 0.5) / places.columns) * canvas.width, ((row + 0.5) / places.rows) * canvas.height];
  brush.fillStyle = "rgba(0, 0, 0, 0.35)";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  places.true.forEach((token, index) => {
    const [x, y] = at(token);
    const [u, v] = at(places.predicted[index]);
    brush.strokeStyle = "rgba(255, 255, 255, 0.75)";
    brush.lineWidth = 1;
    brush.beginPath();
    brush.moveTo(x, y);
    brush.lineTo(u, v);
    brush.stroke();
    brush.beginPath();
    brush.arc(x, y, 4, 0, 7);
    brush.stroke();
    brush.fillStyle = "#ff8c1a";
    brush.beginPath();
    brush.arc(u, v, 3, 0, 7);
    brush.fill();
  });
}

async function cameraOn() {
  say("");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
  } catch (problem) {
    say("The camera cannot be used: there is none, or the browser denied access.");
    return;
  }
  place("video").srcObject = stream;
  place("live").hidden = false;
}

function cameraOff() {
  if (stream) stream.getTracks().forEach((track) => track.stop());
  stream = null;
  place("live").hidden = true;
}

function shoot() {
  const video = place("video");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  if (!canvas.width) return;
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => take([new File([blob], "camera.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.95);
}

place("zoom").addEventListener("click", () => place("zoom").close());
place("choose").addEventListener("click", () => place("files").click());
place("files").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = "";
});
place("camera").addEventListener("click", cameraOn);
place("off").addEventListener("click", cameraOff);
place("shot").addEventListener("click", shoot);
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    place("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer) take(event.dataTransfer.files);
  });
}
start().catch(() => say("The server did not answer. Is it still running?"));
