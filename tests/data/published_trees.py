"""Small published data sets in their official layout: each function writes one and returns its counts."""

import pickle

import numpy as np


def write(root, files):
    """Files by path; images are empty, because nobody opens them here."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else "".join(f"{x}\n" for x in content).encode())


def write_images(root, names):
    write(root, dict.fromkeys(names, b""))


SOP_HEADER = "image_id class_id super_class_id path"
SOP_TRAIN = [
    "1 1 1 bicycle_final/111_0.JPG",
    "2 1 1 bicycle_final/111_1.JPG",
    "3 2 1 bicycle_final/222_0.JPG",
    "4 3 2 cabinet_final/333_0.JPG",
]
SOP_TEST = ["5 4 1 bicycle_final/444_0.JPG", "6 4 1 bicycle_final/444_1.JPG", "7 5 2 cabinet_final/555_0.JPG"]


def sop(root):
    write(root, {"Ebay_train.txt": [SOP_HEADER, *SOP_TRAIN], "Ebay_test.txt": [SOP_HEADER, *SOP_TEST]})
    write_images(root, [line.split()[3] for line in SOP_TRAIN + SOP_TEST])
    return {"train": (4, 3), "test": (3, 2)}


IN_SHOP_HEADER = "image_name item_id evaluation_status"
IN_SHOP = [
    "img/WOMEN/Dresses/id_00000002/02_1_front.jpg            id_00000002 train",
    "img/WOMEN/Dresses/id_00000002/02_2_side.jpg             id_00000002 train",
    "img/MEN/Denim/id_00000003/01_1_front.jpg                id_00000003 train",
    "img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg     id_00000001 query",
    "img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg      id_00000001 gallery",
    "img/WOMEN/Blouses_Shirts/id_00000001/02_3_back.jpg      id_00000001 gallery",
]


def in_shop(root, above="Img/"):
    write(root, {"Eval/list_eval_partition.txt": [len(IN_SHOP), IN_SHOP_HEADER, *IN_SHOP]})
    write_images(root, [above + line.split()[0] for line in IN_SHOP])
    return {"train": (3, 2), "query": (1, 1), "gallery": (2, 1)}


VEHICLES = {
    "train_list": ["0000001 10", "0000002 10", "0000003 11"],
    "test_list_800": ["0000004 20", "0000005 20"],
    "test_list_1600": ["0000006 21", "0000005 20", "0000007 21"],  # not a superset of the smaller one
    "test_list_2400": ["0000004 20", "0000006 21", "0000008 22"],
}


def vehicleid(root):
    write(root, {f"train_test_split/{name}.txt": lines for name, lines in VEHICLES.items()})
    write(root, {"attribute/model_attr.txt": ["10 3", "20 3", "21 0", "99 1"]})
    write_images(root, [f"image/000000{i}.jpg" for i in range(1, 9)])
    return {"train": (3, 2), "small": (2, 1), "medium": (3, 2), "large": (3, 3)}


INAT = {
    "train": ["Plantae/5221/a0.jpg", "Plantae/5221/a1.jpg", "Aves/77/b0.jpg"],
    "test": ["Aves/78/c0.jpg", "Insecta/9/d0.jpg", "Insecta/9/d1.jpg", "Insecta/9/d2.jpg"],
}


def inaturalist(root):
    for split, names in INAT.items():
        paths = [f"train_val2018/{name}" for name in names]
        write(root, {f"Inat_dataset_splits/Inaturalist_{split}_set1.txt": paths})
        write_images(root, paths)
    return {"train": (3, 2), "test": (4, 2)}


CUB = [  # path, class; 100 is still for training
    ("001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg", 1),
    ("001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg", 1),
    ("100.Brown_Pelican/Brown_Pelican_0001_93.jpg", 100),
    ("101.White_Pelican/White_Pelican_0001_96.jpg", 101),
    ("200.Common_Yellowthroat/Common_Yellowthroat_0003_19.jpg", 200),
]


def cub(root):
    write(root, {"images.txt": [f"{i} {path}" for i, (path, _) in enumerate(CUB, 1)]})
    write(root, {"image_class_labels.txt": [f"{i} {label}" for i, (_, label) in enumerate(CUB, 1)]})
    write_images(root, [f"images/{path}" for path, _ in CUB])
    return {"train": (3, 2), "test": (2, 2)}


def vggface2(root):
    write_images(root, [f"train/n00000{i}/000{j}_01.jpg" for i in (2, 3) for j in (1, 2)])
    write_images(root, [f"test/n000001/000{j}_01.jpg" for j in (3, 1, 2)])
    write(root, {"train/readme.txt": ["no identity"], "train/.cache/x.jpg": b"", "test/n000001/notes.txt": b""})
    return {"train": (4, 2), "test": (3, 1)}


IJBC_HEADER = "SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT,FRAME_NUM"
IJBC = [
    "1,img/1.jpg,100,10,20,30,40,",
    "1,img/2.jpg,101,1,2,3,4,",
    "1,img/3.jpg,102,1,2,3,4,",
    "1,img/3.jpg,103,5,6,7,8,",  # there already
    "1,frames/1.jpg,104,1,2,3,4,0",
    "1,frames/2.jpg,104,1,2,3,4,5",
    "1,frames/3.jpg,105,1,2,3,4,0",
    "2,frames/3.jpg,106,50,2,3,4,0",  # a second face on the frame
    "2,img/4.jpg,107,1,2,3,4,",
    "2,img/5.jpg,108,1,2,3,4,",
    "2,frames/4.jpg,106,1,2,3,4,5",
    "2,img/6.jpg,109,nan,nan,nan,nan,",
    "nan,img/7.jpg,110,1,2,3,4,",  # nobody
    "3,img/8.jpg,111,1,2,3,4,",
]


def ijb_c(root):
    write(root, {"protocols/ijbc_metadata.csv": [IJBC_HEADER, *IJBC]})
    write_images(root, [f"images/{line.split(',')[1]}" for line in IJBC])
    return {"test": (12, 3)}


LANDMARKS = [
    "http://www.example.org/a/b/tower.jpg 17",
    "https://example.org/big%20ben.jpg?size=large 17",
    "https://example.org/tower.jpg 4",
    "photos/dome.png 4",
]
LANDMARK_IMAGES = ["images/17/tower.jpg", "images/17/big%20ben.jpg", "images/4/tower.jpg", "photos/dome.png"]


def landmarks_clean(root):
    write(root, {"annotation_clean_train.txt": LANDMARKS})
    write_images(root, LANDMARK_IMAGES)
    return {"train": (4, 2)}


def truth(images=("all_souls_000013", "oxford_002985", "b"), queries=("all_souls_000026", "q"), boxes=None):
    boxes = boxes or [[136.5, 34.1, 648.5, 955.7], np.array([1.0, 2, 3, 4])]
    lists = {"easy": [0], "hard": np.array([1]), "junk": []}
    return {"imlist": list(images), "qimlist": list(queries), "gnd": [{"bbx": box, **lists} for box in boxes]}


def revisited(name):
    def tree(root):
        write(root, {f"gnd_{name}.pkl": pickle.dumps(truth(), 2)})
        write_images(root, [f"jpg/{image}.jpg" for image in ("all_souls_000013", "oxford_002985", "b")])
        write_images(root, [f"jpg/{image}.jpg" for image in ("all_souls_000026", "q")])
        return {"query": (2, None), "gallery": (3, None)}

    return tree


def distractors(root):
    write(root, {"revisitop1m.txt": ["1/a.jpg", "1/b", "2/c.jpg"]})
    write_images(root, ["jpg/1/a.jpg", "jpg/1/b.jpg", "jpg/2/c.jpg"])
    return {"distractor": (3, None)}


TREES = {
    "sop": sop,
    "in-shop": in_shop,
    "vehicleid": vehicleid,
    "inaturalist": inaturalist,
    "cub": cub,
    "vggface2": vggface2,
    "ijb-c": ijb_c,
    "landmarks-clean": landmarks_clean,
    "roxford5k": revisited("roxford5k"),
    "rparis6k": revisited("rparis6k"),
    "revisited-1m": distractors,
}
