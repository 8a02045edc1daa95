//! Who and what there is: regions, staff, suppliers, products, customers.
//!
//! All names are invented; e-mail addresses are of a domain that is reserved for examples.

use super::draw::Draw;
use super::table::{Cents, Day, Nullable, Table};

/// The region of the kettle story.
pub(super) const NORDICS: u32 = 3;
/// The region of the carrier story.
pub(super) const ALPS: u32 = 5;
/// The region of the churn story.
pub(super) const IBERIA: u32 = 4;
/// The product of the kettle story: returned for leaking.
pub(super) const KETTLE: u32 = 117;
/// The customer who pays twice.
pub(super) const PAYS_TWICE: u32 = 1_404;
/// Customers who were there before 2024.
pub(super) const CUSTOMERS_OLD: u32 = 3_000;
/// All customers.
pub(super) const CUSTOMERS: u32 = 5_000;
/// All products.
pub(super) const PRODUCTS: u32 = 400;
/// Sales representatives of each region.
pub(super) const REPRESENTATIVES_PER_REGION: u32 = 5;
/// Support agents of each region.
pub(super) const AGENTS_PER_REGION: u32 = 2;
/// Regions.
pub(super) const REGIONS: u32 = 8;

const REGION_NAMES: [(&str, &str); REGIONS as usize] = [
    ("Benelux", "EUR"),
    ("British Isles", "GBP"),
    ("Nordics", "EUR"),
    ("Iberia", "EUR"),
    ("Alps", "CHF"),
    ("Central Europe", "EUR"),
    ("Baltics", "EUR"),
    ("Mediterranean", "EUR"),
];

const FIRST: [&str; 24] = [
    "Ada", "Bram", "Clara", "Dmitri", "Elin", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Luca",
    "Maja", "Nils", "Olga", "Pavel", "Rosa", "Sven", "Tilda", "Umar", "Vera", "Wim", "Yara", "Zoran",
];
const LAST: [&str; 28] = [
    "Andersen",
    "Bakker",
    "Costa",
    "Dahl",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Hansen",
    "Ivanov",
    "Jansen",
    "Keller",
    "Lindqvist",
    "Moreau",
    "Novak",
    "Olsen",
    "Petrov",
    "Quint",
    "Rossi",
    "Schmidt",
    "Tamm",
    "Ulrich",
    "Virtanen",
    "Weber",
    "Xavier",
    "Yilmaz",
    "Zeman",
    "Brandt",
    "Silva",
];
const COMPANY: [&str; 20] = [
    "Alder",
    "Birch",
    "Cobalt",
    "Delta",
    "Ember",
    "Fjord",
    "Garnet",
    "Harbor",
    "Indigo",
    "Juniper",
    "Kestrel",
    "Lantern",
    "Meridian",
    "Northwind",
    "Orchard",
    "Pioneer",
    "Quarry",
    "Ridge",
    "Summit",
    "Tideway",
];
const COMPANY_END: [&str; 8] =
    ["Hotels", "Catering", "Interiors", "Retail", "Offices", "Logistics", "Studios", "Living"];
const CATEGORIES: [(&str, &[&str], u32, u32); 12] = [
    ("Kettles", &["Kettle", "Travel Kettle"], 2_500, 9_000),
    ("Coffee", &["Espresso Maker", "Grinder", "French Press"], 2_000, 45_000),
    ("Cookware", &["Saucepan", "Frying Pan", "Stockpot"], 1_800, 16_000),
    ("Knives", &["Chef Knife", "Bread Knife", "Knife Block"], 1_500, 14_000),
    ("Tableware", &["Plate Set", "Bowl Set", "Mug Set"], 1_200, 8_000),
    ("Lighting", &["Desk Lamp", "Floor Lamp", "Pendant"], 2_200, 22_000),
    ("Textiles", &["Towel Set", "Throw", "Curtain"], 900, 9_500),
    ("Storage", &["Basket", "Shelf", "Cabinet"], 1_100, 28_000),
    ("Office", &["Desk", "Chair", "Monitor Arm"], 4_500, 52_000),
    ("Cleaning", &["Vacuum", "Mop", "Steam Cleaner"], 1_600, 39_000),
    ("Garden", &["Planter", "Hose Reel", "Shears"], 1_000, 12_000),
    ("Small Appliances", &["Toaster", "Blender", "Hand Mixer"], 1_900, 21_000),
];
const SERIES: [&str; 16] = [
    "Aurora", "Basalt", "Cirrus", "Drift", "Echo", "Flint", "Grove", "Halo", "Isla", "Jade", "Koru", "Lumen",
    "Mistral", "Nova", "Onyx", "Prism",
];
const COUNTRIES: [&str; 8] =
    ["Germany", "Italy", "Poland", "Portugal", "Turkey", "Vietnam", "China", "Sweden"];

/// What orders need to know of a product.
pub(super) struct Product {
    pub(super) list_price: Cents,
}

/// What orders need to know of a customer.
pub(super) struct Customer {
    pub(super) region_id: u32,
    pub(super) enterprise: bool,
}

pub(super) fn regions() -> Table {
    let mut table = Table::new("regions");
    for (name, currency) in REGION_NAMES {
        table.row(&[&table.next_id(), &name, &currency]);
    }
    table
}

/// Regional managers first, then each region's representatives, then its agents.
pub(super) fn employees(draw: &mut Draw) -> Table {
    let mut table = Table::new("employees");
    let mut hire = |table: &mut Table, title: &str, region: u32, manager: Option<u32>| {
        let name = format!("{} {}", draw.one_of(&FIRST), draw.one_of(&LAST));
        let hired = Day(-i32::try_from(draw.between(30, 3_000)).expect("few days"));
        table.row(&[&table.next_id(), &name, &title, &region, &Nullable(manager), &hired]);
    };
    for region in 1..=REGIONS {
        hire(&mut table, "Regional manager", region, None);
    }
    for region in 1..=REGIONS {
        for _ in 0..REPRESENTATIVES_PER_REGION {
            hire(&mut table, "Sales representative", region, Some(region));
        }
    }
    for region in 1..=REGIONS {
        for _ in 0..AGENTS_PER_REGION {
            hire(&mut table, "Support agent", region, Some(region));
        }
    }
    table
}

/// One of the region's sales representatives.
pub(super) fn representative(region: u32, index: u32) -> u32 {
    REGIONS + (region - 1) * REPRESENTATIVES_PER_REGION + index + 1
}

/// One of the region's support agents.
pub(super) fn agent(region: u32, index: u32) -> u32 {
    REGIONS + REGIONS * REPRESENTATIVES_PER_REGION + (region - 1) * AGENTS_PER_REGION + index + 1
}

pub(super) fn suppliers(draw: &mut Draw) -> Table {
    let mut table = Table::new("suppliers");
    for _ in 0..40 {
        let name = format!("{} Works {}", draw.one_of(&COMPANY), table.next_id());
        table.row(&[&table.next_id(), &name, &draw.one_of(&COUNTRIES), &draw.between(5, 60)]);
    }
    table
}

pub(super) fn categories() -> Table {
    let mut table = Table::new("categories");
    for (name, ..) in CATEGORIES {
        table.row(&[&table.next_id(), &name]);
    }
    table
}

pub(super) fn products(draw: &mut Draw) -> (Table, Vec<Product>) {
    let mut table = Table::new("products");
    let mut products = Vec::new();
    for id in 1..=PRODUCTS {
        let category = draw.below(12);
        let (_, kinds, low, high) = CATEGORIES[category as usize];
        let spread = low + draw.skewed(high - low, 2);
        // Prices end in 90 cents, as in shops.
        let (mut category, mut price) = (category + 1, u64::from(spread / 100 * 100 + 90));
        let mut name = format!("{} {} {}", draw.one_of(&SERIES), draw.one_of(kinds), id);
        if id == KETTLE {
            (category, price) = (1, 5_990);
            "Aurora Kettle 1.7 L".clone_into(&mut name);
        }
        let cost = price * u64::from(draw.between(38, 72)) / 100;
        let launched = Day(i32::try_from(draw.below(1_400)).expect("few days") - 1_400);
        table.row(&[
            &id,
            &format!("SKU-{id:05}"),
            &name,
            &category,
            &draw.between(1, 40),
            &Cents(price),
            &Cents(cost),
            &launched,
        ]);
        products.push(Product { list_price: Cents(price) });
    }
    (table, products)
}

/// Ids rise with the day of creation, so that an order finds who was there already.
pub(super) fn customers(draw: &mut Draw) -> (Table, Vec<Customer>) {
    let mut table = Table::new("customers");
    let mut customers = Vec::new();
    for id in 1..=CUSTOMERS {
        let mut segment = match draw.below(100) {
            0..=63 => "consumer",
            64..=89 => "small business",
            _ => "enterprise",
        };
        let mut region_id = draw.skewed(REGIONS, 2) + 1;
        if id == PAYS_TWICE {
            (segment, region_id) = ("small business", 6);
        }
        let name = match segment {
            "consumer" => format!("{} {}", draw.one_of(&FIRST), draw.one_of(&LAST)),
            _ => format!("{} {} {id}", draw.one_of(&COMPANY), draw.one_of(&COMPANY_END)),
        };
        let created = Day(created_day(id));
        table.row(&[&id, &name, &segment, &format!("customer{id}@example.com"), &region_id, &created]);
        customers.push(Customer { region_id, enterprise: segment == "enterprise" });
    }
    (table, customers)
}

/// The first customers came evenly in the three years before 2024, the others in the two after.
fn created_day(id: u32) -> i32 {
    let signed = |value: u32| i32::try_from(value).expect("few days");
    if id <= CUSTOMERS_OLD {
        signed(id * 1_095 / CUSTOMERS_OLD) - 1_096
    } else {
        signed((id - CUSTOMERS_OLD) * 720 / (CUSTOMERS - CUSTOMERS_OLD))
    }
}

/// How many customers there are on `day`.
pub(super) fn customers_on(day: Day) -> u32 {
    let days = u32::try_from(day.0).unwrap_or_default();
    (CUSTOMERS_OLD + days * (CUSTOMERS - CUSTOMERS_OLD) / 720).min(CUSTOMERS).saturating_sub(1)
}
